#include "grammar/rules.h"

#include <algorithm>

#include "base/error.h"

namespace quire::grammar {

Symbol Rules::add_rule() {
  alternatives_.emplace_back();
  return Symbol::rule(uint32_t(alternatives_.size() - 1));
}

void Rules::add(Symbol rule, std::span<const Symbol> parts) {
  if (symbols_.size() + parts.size() + 1 + alternatives_.size() > kMostSymbols)
    throw Error("the grammar is too large: it has more than {} parts", kMostSymbols);
  alternatives_[rule.index()].push_back(uint32_t(symbols_.size()));
  for (const Symbol part : parts) {
    if (part != Symbol::terminal(ExprPool::kEmpty)) symbols_.push_back(part);
  }
  symbols_.push_back(kEnd);
}

Symbol Rules::repeated(Symbol one, uint32_t least, uint32_t most) {
  if (one.is_terminal()) return Symbol::terminal(pool_.repeat(one.text(), least, most));
  Symbol result = add_rule();
  if (most == ExprPool::kNoMost) {  // to the left: then what has come before is forgotten
    add(result, {});
    add(result, {result, one});
  } else {
    add(result, {});
    for (uint32_t i = least; i < most; ++i) {
      const Symbol longer = add_rule();
      add(longer, {});
      add(longer, {one, result});
      result = longer;
    }
  }
  for (uint32_t i = 0; i < least; ++i) {
    const Symbol longer = add_rule();
    add(longer, {one, result});
    result = longer;
  }
  return result;
}

bool Rules::is_productive(Symbol symbol) {
  return symbol.is_terminal() ? pool_.is_live(symbol.text()) : bool(productive_[symbol.index()]);
}

template <class Holds>
std::vector<bool> Rules::spread(Holds holds) {
  std::vector<bool> known(alternatives_.size(), false);
  // Each alternative waits for the rules in it of which it is not known yet.
  std::vector<std::vector<uint32_t>> waiting(alternatives_.size());  // by rule: numbers of alternatives
  std::vector<uint32_t> missing, owner, done;
  for (uint32_t rule = 0; rule < alternatives_.size(); ++rule) {
    for (uint32_t place : alternatives_[rule]) {
      const uint32_t number = uint32_t(missing.size());
      missing.push_back(0);
      owner.push_back(rule);
      for (; at(place) != kEnd; ++place) {
        const Symbol symbol = at(place);
        if (symbol.is_terminal() && holds(symbol.text())) continue;
        ++missing[number];
        if (!symbol.is_terminal()) waiting[symbol.index()].push_back(number);
      }
      if (missing[number] == 0 && !known[rule]) {
        known[rule] = true;
        done.push_back(rule);
      }
    }
  }
  while (!done.empty()) {
    const uint32_t rule = done.back();
    done.pop_back();
    for (uint32_t number : waiting[rule]) {
      if (--missing[number] > 0 || known[owner[number]]) continue;
      known[owner[number]] = true;
      done.push_back(owner[number]);
    }
  }
  return known;
}

void Rules::finish(Symbol root) {
  const Symbol start = add_rule();
  add(start, {root});
  start_ = alternatives_[start.index()][0];
  productive_ = spread([&](ExprId text) { return pool_.is_live(text); });
  if (!productive_[start.index()])
    throw Error("the grammar allows no text at all: what it asks for contradicts itself");
  for (std::vector<uint32_t>& places : alternatives_) {
    std::erase_if(places, [&](uint32_t place) {
      for (; at(place) != kEnd; ++place) {
        if (!is_productive(at(place))) return true;
      }
      return false;
    });
  }
  nullable_ = spread([&](ExprId text) { return pool_.nullable(text); });
}

}  // namespace quire::grammar
