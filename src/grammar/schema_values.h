#pragma once

#include <map>
#include <span>
#include <string>
#include <vector>

#include "grammar/code_points.h"
#include "grammar/schema.h"

namespace quire::grammar {

// Several schemas that must all hold.
using Goal = std::vector<const Schema*>;

// How the characters of a string are written.
enum class TextForm : uint8_t {
  json,      // in any spelling of JSON's where nothing is asked of the string, else in one
  json_one,  // in one spelling
  plain      // as they are
};

// What strings and numbers schemas allow, as texts. It looks at the keywords of these schemas alone, not at the ones that lead to
// others (allOf, anyOf, ...).
class SchemaValues {
 public:
  explicit SchemaValues(ExprPool& pool, TextForm form = TextForm::json) : pool_(pool), form_(form) {}

  // What may stand between the quotes of a string.
  ExprId string_content(const Goal& schemas);
  // The same, of strings that are spelled in one way only.
  ExprId plain_content(const Goal& schemas);
  ExprId number(const Goal& schemas, JsonTypes types);
  // Whether a string or number does what keywords say of its kind.
  bool holds(const Schema& schema, const OrderedJson& value);
  // Whether a name matches a pattern of patternProperties.
  bool matches(const std::string& pattern, const std::string& name);
  ExprId pattern_content(const std::string& pattern);
  // Any number of any characters.
  ExprId any_content(JsonSpelling spelling) {
    return pool_.repeat(character(spelling), 0, ExprPool::kNoMost);
  }
  ExprId character(JsonSpelling spelling);
  // Of what nothing is asked.
  JsonSpelling free_spelling() const {
    return form_ == TextForm::json ? JsonSpelling::any : JsonSpelling::one;
  }
  // A text as it is written.
  std::string content(const std::string& text) const;

  ExprPool& pool() { return pool_; }

 private:
  // Nothing where the format says nothing.
  ExprId format_content(const std::string& format);
  std::vector<ExprId> string_limits(const Goal& schemas, JsonSpelling& spelling);
  std::vector<ExprId> number_limits(const Goal& schemas);

  ExprPool& pool_;
  const TextForm form_;
  std::map<std::string, ExprId> patterns_, formats_;
  std::map<JsonSpelling, ExprId> characters_;
};

// The text between the quotes.
std::string json_content(const std::string& text);

}  // namespace quire::grammar
