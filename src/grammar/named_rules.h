#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "grammar/rules.h"

namespace quire::grammar {

// Rules as grammar files write them: by name, with repetitions and alternatives inside each other. Rules that do not need
// themselves become parts of the terminals around them.
class NamedRules {
 public:
  using Node = uint32_t;

  ExprPool& pool() { return rules_.pool(); }

  Node text(ExprId text);
  Node sequence(std::vector<Node> parts);
  Node choice(std::vector<Node> parts);
  Node repeat(Node part, uint32_t least, uint32_t most);
  Node use(const std::string& name);
  // Throws Error if it is defined already.
  void define(const std::string& name, Node body);
  bool is_defined(const std::string& name) const;

  // Throws Error if a name that is used was not defined, or if nothing is left.
  Rules build(Node root) &&;

 private:
  enum class Kind : uint8_t { text, use, sequence, choice, repeat };
  struct Entry {
    Kind kind = Kind::text;
    ExprId text = ExprPool::kEmpty;
    uint32_t rule = 0, least = 0, most = 0;
    std::vector<Node> parts = {};
  };
  enum class Regular : uint8_t { unknown, in_question, yes, no };
  struct Rule {
    std::string name;
    std::optional<Node> body = {};
    Regular regular = Regular::unknown;
    ExprId text = ExprPool::kNothing;  // if it is
    std::optional<Symbol> symbol = {};
  };

  Node add(Entry entry);
  uint32_t rule_of(const std::string& name);
  std::optional<ExprId> text_of(Node node, uint32_t depth);
  std::optional<ExprId> text_of_rule(uint32_t rule, uint32_t depth);
  Symbol symbol_of(Node node);
  Symbol symbol_of_rule(uint32_t rule);

  Rules rules_;
  std::vector<Entry> nodes_;
  std::vector<Rule> named_;
  std::map<std::string, uint32_t> by_name_;
  std::vector<uint32_t> to_emit_;  // rules that have a symbol and no alternatives yet
};

}  // namespace quire::grammar
