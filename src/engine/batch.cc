#include "engine/batch.h"

#include <numeric>

namespace quire {

void Batch::add(std::span<const TokenId> run_tokens, uint32_t position, Logits logits) {
  const uint32_t count = uint32_t(run_tokens.size());
  std::vector<uint32_t> run_positions(count);
  std::iota(run_positions.begin(), run_positions.end(), position);
  add(run_tokens, run_positions, {position, position},
      logits == Logits::all    ? count
      : logits == Logits::last ? 1u
                               : 0u);
}

void Batch::add(std::span<const TokenId> run_tokens, std::span<const uint32_t> run_positions, Rows rows,
                uint32_t logits) {
  const uint32_t begin = uint32_t(tokens.size());
  const uint32_t count = uint32_t(run_tokens.size());
  runs.push_back({begin, count, rows.row, rows.window_row});
  for (uint32_t i = 0; i < count; ++i) {
    tokens.push_back(run_tokens[i]);
    positions.push_back(run_positions[i]);
    run_of_token.push_back(uint32_t(runs.size() - 1));
    if (i + logits >= count) logit_rows.push_back(begin + i);
  }
}

Batch make_batch(const StepPlan& plan) {
  Batch batch;
  std::vector<TokenId> tokens;
  std::vector<uint32_t> positions;
  for (const StepPlan::Run& run : plan.runs) {
    const Sequence& sequence = *run.sequence;
    tokens.clear();
    positions.clear();
    for (uint32_t i = 0; i < run.count + run.drafts; ++i) {
      positions.push_back(sequence.position_of(sequence.computed + i));
      tokens.push_back(i < run.count ? sequence.tokens[positions.back()] : sequence.drafts[i - run.count]);
    }
    batch.add(tokens, positions, {sequence.computed, sequence.computed + sequence.table.window_shift()},
              run.samples ? 1 + run.drafts : 0);
  }
  return batch;
}

}  // namespace quire
