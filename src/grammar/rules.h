#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "grammar/expr_pool.h"

namespace quire::grammar {

// What stands in a rule: another rule, or a terminal, which is a regular language over bytes.
struct Symbol {
  static constexpr uint32_t kTerminal = 1u << 31;

  uint32_t value = 0;

  static Symbol rule(uint32_t index) { return {index}; }
  static Symbol terminal(ExprId text) { return {text | kTerminal}; }
  bool is_terminal() const { return (value & kTerminal) != 0; }
  ExprId text() const { return value & ~kTerminal; }
  uint32_t index() const { return value; }
  bool operator==(const Symbol&) const = default;
};

// A context-free grammar whose terminals are regular languages: the one form that schemas, regular expressions and grammars
// become. There is no lexer that decides what a terminal was: wherever one may end, it may.
class Rules {
 public:
  static constexpr size_t kMostSymbols = 2'000'000;
  static constexpr Symbol kEnd{~uint32_t(0)};  // of an alternative

  ExprPool& pool() { return pool_; }

  Symbol add_rule();
  // Another alternative of a rule. Throws Error if there are too many.
  void add(Symbol rule, std::span<const Symbol> parts);
  void add(Symbol rule, std::initializer_list<Symbol> parts) {
    add(rule, std::span(parts.begin(), parts.size()));
  }
  Symbol literal(std::string_view text) { return Symbol::terminal(pool_.literal(text)); }
  // `one` so many times.
  Symbol repeated(Symbol one, uint32_t least, uint32_t most);

  // Leaves out what can never be completed. Throws Error if that is all. REQUIRES: nothing is added any more.
  void finish(Symbol root);

  // Of a finished grammar.
  uint32_t start() const { return start_; }  // where the alternative is that is the root alone
  Symbol at(uint32_t place) const { return symbols_[place]; }
  std::span<const uint32_t> alternatives(uint32_t rule) const { return alternatives_[rule]; }
  bool is_nullable(Symbol symbol) const {
    return symbol.is_terminal() ? pool_.nullable(symbol.text()) : nullable_[symbol.index()];
  }
  // Whether something that can be completed follows from the symbol. REQUIRES: finish() was called.
  bool is_productive(Symbol symbol);
  size_t used_bytes() const {
    return pool_.used_bytes() + symbols_.capacity() * sizeof(Symbol) + alternatives_.size() * 32;
  }

 private:
  // By rule: whether some alternative of it has only terminals of which it holds, and such rules.
  template <class Holds>
  std::vector<bool> spread(Holds holds);

  ExprPool pool_;
  std::vector<Symbol> symbols_;                      // all alternatives, each followed by kEnd
  std::vector<std::vector<uint32_t>> alternatives_;  // by rule: where they begin
  std::vector<bool> productive_, nullable_;
  uint32_t start_ = 0;
};

}  // namespace quire::grammar
