#include "grammar/grammar_budget.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "grammar/grammar.h"

namespace quire::grammar {

GrammarFigures GrammarBudget::figures() const {
  const std::lock_guard lock(mutex_);
  return {.bytes = bytes_.load(),
          .most_bytes = most_.load(),
          .grammars = uint32_t(known_.size()),
          .compiled = compiled_.load(),
          .forgotten = forgotten_.load(),
          .refused = refused_.load()};
}

void GrammarBudget::join(Grammar& one) {
  const std::lock_guard lock(mutex_);
  known_.emplace(&one, 0);
  compiled_.fetch_add(1, std::memory_order_relaxed);
}

void GrammarBudget::leave(Grammar& one) {
  const std::lock_guard lock(mutex_);
  const auto found = known_.find(&one);
  bytes_.fetch_sub(found->second);
  known_.erase(found);
}

bool GrammarBudget::told(Grammar& asker, size_t bytes) {
  const std::lock_guard lock(mutex_);
  const auto set = [this](size_t& known, size_t now) {
    bytes_.fetch_add(now - known);  // modulo 2^64
    known = now;
  };
  set(known_.at(&asker), bytes);
  if (!is_over()) return false;
  std::vector<std::pair<uint64_t, Grammar*>> others;  // who was not asked for longest comes first
  for (const auto& [one, taken] : known_) {
    if (one != &asker) others.emplace_back(one->last_asked(), one);
  }
  std::ranges::sort(others);
  for (const auto& [when, one] : others) {
    if (!is_over()) return false;
    if (const auto now = one->try_forget()) set(known_.at(one), *now);
  }
  return is_over();
}

}  // namespace quire::grammar
