#pragma once

#include <cstdint>
#include <span>

#include "base/id.h"

namespace quire {

// Consecutive tokens of one sequence in a step.
struct TokenRun {
  uint32_t begin = 0;  // in the batch's token arrays
  uint32_t count = 0;
  // Where the first token's keys and values go in its sequence's pages: its position, less the tokens before it that were
  // pruned. The others follow. A layer group may count otherwise, and so may a head: KvView::head_row says what they call
  // a row.
  uint32_t row = 0;

  uint32_t row_of(uint32_t token) const { return row + token - begin; }
};

// One step as flat arrays: tokens of all runs, one after the other.
struct BatchView {
  std::span<const TokenId> tokens;
  std::span<const uint32_t> positions;     // by token: what its rotation says
  std::span<const uint32_t> run_of_token;  // by token
  std::span<const TokenRun> runs;
  std::span<const uint32_t> logit_rows;  // the tokens whose logits are wanted, ascending
};

}  // namespace quire
