#pragma once

#include <vector>

#include "backend/backend.h"
#include "engine/scheduler.h"

namespace quire {

// A plan as flat arrays the backend can read.
struct Batch {
  std::vector<TokenId> tokens;
  std::vector<uint32_t> positions;
  std::vector<uint32_t> run_of_token;
  std::vector<TokenRun> runs;
  std::vector<uint32_t> logit_rows;

  enum class Logits { none, last, all };
  // Appends a run of `run_tokens` that starts at `position` of its sequence.
  void add(std::span<const TokenId> run_tokens, uint32_t position, Logits logits);
  // The same of tokens that are anywhere in their sequence, with the logits of the last `logits`.
  struct Rows {
    uint32_t row = 0, window_row = 0;  // see TokenRun
  };
  void add(std::span<const TokenId> run_tokens, std::span<const uint32_t> run_positions, Rows rows,
           uint32_t logits);
  BatchView view() const { return {tokens, positions, run_of_token, runs, logit_rows}; }
};

Batch make_batch(const StepPlan& plan);

}  // namespace quire
