#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>

#include "engine/pruning/pruning_options.h"
#include "kv/layout/kv_layout.h"

namespace quire {

// How many rows of keys and values a sequence may have, prompt and answer: whenever it has so many, some are let go. Exactly one of
// `rows` and `bytes` is set.
struct BudgetOptions {
  uint32_t rows = 0;                           // of each head that sees everything
  size_t bytes = 0;                            // of all of them
  PruningPolicy policy = PruningPolicy::snap;  // or streaming: the oldest go
  uint32_t pinned = kFirst;                    // the first so many tokens always stay
  uint32_t window = 32;                        // and the last so many

  // Tokens that are no content draw attention because they are the first; without them all is lost.
  static constexpr uint32_t kFirst = 4;

  void check() const;  // throws Error naming the first value that is out of range
  // Of sequences that are kept so: whole nodes, and how many go at a time. Throws Error if that leaves no room to choose from.
  uint32_t rows_of(const KvLayout& layout) const;
  uint32_t step_of(const KvLayout& layout) const;
};

// "2000" rows or "64M" bytes; throws Error.
void read_budget(std::string_view text, BudgetOptions& options);
// Throws Error if it is none that a budget knows.
void check_budget_policy(PruningPolicy policy);

}  // namespace quire
