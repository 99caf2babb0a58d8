#pragma once

#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/json.h"
#include "text/pattern.h"

namespace quire {

// How the text of a field of a response_template becomes a value.
struct DeclaredContent {
  enum class Kind : uint8_t { text, integer, real, boolean, json, xml_inline, kv_lines };
  Kind kind = Kind::text;
  bool strip = true;  // text: without the space around it

  bool unquoted_keys = false;                                           // json
  std::vector<std::pair<std::string, std::string>> string_delims = {};  // json: further quotes
  bool allow_non_json = false;                                          // json: else it is a text

  std::shared_ptr<const Pattern> tag = {};  // xml_inline: a key and its value
  bool merge_duplicates = false;            // xml_inline: values of one key are a list

  std::string line_sep = "\n", kv_sep = ":";          // kv_lines
  std::shared_ptr<const DeclaredContent> value = {};  // of a key; none: as it stands
};

// `name` and `args` as the template has them. Throws Error with a sentence.
DeclaredContent read_declared_content(const OrderedJson& name, const OrderedJson& args, uint32_t depth = 0);

// Throws Error if the text has not that form, or it takes too long to find out.
OrderedJson content_value(const DeclaredContent& content, std::string_view text);

// The parsed content, put into the form that `transform` says: texts such as "{content}" and "{name}" stand for what was found.
OrderedJson transformed(const OrderedJson& transform, const OrderedJson& scope);
// Throws Error if a text of it mixes a placeholder with words.
void check_transform(const OrderedJson& transform);

std::string_view stripped(std::string_view text);

}  // namespace quire
