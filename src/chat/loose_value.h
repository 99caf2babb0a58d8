#pragma once

#include <cstddef>
#include <optional>
#include <string>
#include <string_view>

#include "base/json.h"

namespace quire {

// Whether a text has a form, or its beginning is one so far.
enum class Match : uint8_t { no, more, yes };

inline bool is_blank(char c) {
  return c == ' ' || c == '\n' || c == '\t' || c == '\r';
}

// Reads values that are nearly JSON, as some models write them: Python's literals, keys and words without quotes, quotes of
// their own. Time and memory grow with the text alone; it nests no deeper than a bound.
class LooseReader {
 public:
  // `quote` empty: only ' and ".
  LooseReader(std::string_view text, size_t at, std::string_view quote = {})
      : text_(text), at_(at), quote_(quote) {}

  size_t at() const { return at_; }
  Match value(OrderedJson& value, uint32_t depth = 0);
  // (key=value, ...), from the bracket on.
  Match arguments(OrderedJson& object);

 private:
  void skip_space();
  bool take(std::string_view word);
  Match next(char& c);
  Match string(std::string& out);
  Match quoted(char quote, std::string& out);
  Match list(OrderedJson& value, char close, uint32_t depth);
  Match object(OrderedJson& value, uint32_t depth);
  Match key(std::string& out, char after);
  Match word(OrderedJson& value);

  std::string_view text_;
  size_t at_;
  std::string_view quote_;
};

// A whole text as a Python literal; nothing if it is none.
std::optional<OrderedJson> python_value(std::string_view text);

// Where the JSON object or list that begins at `at` ends; says nothing of what is inside.
Match json_extent(std::string_view text, size_t at, size_t& end);

}  // namespace quire
