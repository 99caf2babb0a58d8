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

// What strings and numbers schemas allow, as texts. It looks at the keywords of these schemas alone, not at the ones that lead to
// others (allOf, anyOf, ...).
class SchemaValues {
 public:
  explicit SchemaValues(ExprPool& pool) : pool_(pool) {}

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

  ExprPool& pool() { return pool_; }

 private:
  std::vector<ExprId> string_limits(const Goal& schemas, JsonSpelling& spelling);
  std::vector<ExprId> number_limits(const Goal& schemas);

  ExprPool& pool_;
  std::map<std::string, ExprId> patterns_;
};

// The text between the quotes.
std::string json_content(const std::string& text);

}  // namespace quire::grammar
