#pragma once

#include <string>
#include <vector>

namespace quire::grammar {

// What an answer has to keep to, as it was asked for.
struct GrammarSource {
  enum class Kind : uint8_t { json_schema, regex, grammar, calls };
  Kind kind = Kind::json_schema;
  std::string
      text;  // the schema, the regular expression, the grammar (GBNF or Lark), or CallRules as call_source writes them

  static GrammarSource json_object() { return {Kind::json_schema, R"({"type":"object"})"}; }
  // One of these texts.
  static GrammarSource choice(const std::vector<std::string>& texts);
  bool operator==(const GrammarSource&) const = default;
};

}  // namespace quire::grammar
