#include "grammar/named_rules.h"

#include <utility>

#include "base/error.h"

namespace quire::grammar {
namespace {

constexpr size_t kMostRules = 20'000, kMostNodes = 500'000;
constexpr uint32_t kMostDepth = 100;     // of rules that are made parts of others
constexpr size_t kMostTextSize = 2'000;  // of such a rule

}  // namespace

NamedRules::Node NamedRules::add(Entry entry) {
  if (nodes_.size() >= kMostNodes)
    throw Error("the grammar is too large: it has more than {} parts", kMostNodes);
  nodes_.push_back(std::move(entry));
  return Node(nodes_.size() - 1);
}

NamedRules::Node NamedRules::text(ExprId text) {
  return add({.kind = Kind::text, .text = text});
}

NamedRules::Node NamedRules::sequence(std::vector<Node> parts) {
  if (parts.size() == 1) return parts[0];
  return add({.kind = Kind::sequence, .parts = std::move(parts)});
}

NamedRules::Node NamedRules::choice(std::vector<Node> parts) {
  if (parts.size() == 1) return parts[0];
  return add({.kind = Kind::choice, .parts = std::move(parts)});
}

NamedRules::Node NamedRules::repeat(Node part, uint32_t least, uint32_t most) {
  return add({.kind = Kind::repeat, .least = least, .most = most, .parts = {part}});
}

uint32_t NamedRules::rule_of(const std::string& name) {
  const auto [found, is_new] = by_name_.emplace(name, uint32_t(named_.size()));
  if (is_new) {
    if (named_.size() >= kMostRules)
      throw Error("the grammar is too large: it has more than {} rules", kMostRules);
    named_.push_back({.name = name});
  }
  return found->second;
}

NamedRules::Node NamedRules::use(const std::string& name) {
  return add({.kind = Kind::use, .rule = rule_of(name)});
}

void NamedRules::define(const std::string& name, Node body) {
  Rule& rule = named_[rule_of(name)];
  if (rule.body) throw Error("the grammar defines '{}' twice", name);
  rule.body = body;
}

bool NamedRules::is_defined(const std::string& name) const {
  const auto found = by_name_.find(name);
  return found != by_name_.end() && named_[found->second].body;
}

std::optional<ExprId> NamedRules::text_of_rule(uint32_t rule, uint32_t depth) {
  if (named_[rule].regular == Regular::unknown) {
    named_[rule].regular = Regular::in_question;
    const std::optional<ExprId> text =
        depth > kMostDepth ? std::nullopt : text_of(*named_[rule].body, depth + 1);
    const bool is_small = text && pool().size(*text) <= kMostTextSize;
    named_[rule].regular = is_small ? Regular::yes : Regular::no;
    if (is_small) named_[rule].text = *text;
  }
  if (named_[rule].regular != Regular::yes) return std::nullopt;
  return named_[rule].text;
}

std::optional<ExprId> NamedRules::text_of(Node node, uint32_t depth) {
  const Entry entry = nodes_[node];
  if (entry.kind == Kind::text) return entry.text;
  if (entry.kind == Kind::use) return text_of_rule(entry.rule, depth);
  std::vector<ExprId> parts;
  for (const Node part : entry.parts) {
    const std::optional<ExprId> text = text_of(part, depth);
    if (!text) return std::nullopt;
    parts.push_back(*text);
  }
  if (entry.kind == Kind::sequence) return pool().concat(parts);
  if (entry.kind == Kind::choice) return pool().any_of(std::move(parts));
  return pool().repeat(parts[0], entry.least, entry.most);
}

Symbol NamedRules::symbol_of_rule(uint32_t rule) {
  if (const std::optional<ExprId> text = text_of_rule(rule, 0)) return Symbol::terminal(*text);
  if (!named_[rule].symbol) {
    named_[rule].symbol = rules_.add_rule();
    to_emit_.push_back(rule);
  }
  return *named_[rule].symbol;
}

Symbol NamedRules::symbol_of(Node node) {
  if (const std::optional<ExprId> text = text_of(node, 0)) return Symbol::terminal(*text);
  const Entry entry = nodes_[node];
  if (entry.kind == Kind::use) return symbol_of_rule(entry.rule);
  if (entry.kind == Kind::repeat) return rules_.repeated(symbol_of(entry.parts[0]), entry.least, entry.most);
  std::vector<Symbol> parts;
  for (const Node part : entry.parts) parts.push_back(symbol_of(part));
  const Symbol symbol = rules_.add_rule();
  if (entry.kind == Kind::choice) {
    for (const Symbol part : parts) rules_.add(symbol, {part});
    return symbol;
  }
  std::vector<Symbol> joined;  // neighbours that are terminals are one
  for (const Symbol part : parts) {
    if (part.is_terminal() && !joined.empty() && joined.back().is_terminal()) {
      joined.back() = Symbol::terminal(pool().concat(joined.back().text(), part.text()));
    } else {
      joined.push_back(part);
    }
  }
  rules_.add(symbol, joined);
  return symbol;
}

Rules NamedRules::build(Node root) && {
  for (const Rule& rule : named_) {
    if (!rule.body) throw Error("the grammar uses '{}', which it does not define", rule.name);
  }
  const Symbol symbol = symbol_of(root);
  while (!to_emit_.empty()) {
    const uint32_t rule = to_emit_.back();
    to_emit_.pop_back();
    rules_.add(*named_[rule].symbol, {symbol_of(*named_[rule].body)});
  }
  rules_.finish(symbol);
  return std::move(rules_);
}

}  // namespace quire::grammar
