#include "engine/batch.h"

namespace quire {

void Batch::add(std::span<const TokenId> run_tokens, uint32_t position, Logits logits) {
  const uint32_t count = uint32_t(run_tokens.size());
  add(run_tokens, position, logits == Logits::all ? count : logits == Logits::last ? 1u : 0u);
}

void Batch::add(std::span<const TokenId> run_tokens, uint32_t position, uint32_t logits) {
  const uint32_t begin = uint32_t(tokens.size());
  const uint32_t count = uint32_t(run_tokens.size());
  runs.push_back({begin, count, position});
  for (uint32_t i = 0; i < count; ++i) {
    tokens.push_back(run_tokens[i]);
    positions.push_back(position + i);
    run_of_token.push_back(uint32_t(runs.size() - 1));
    if (i + logits >= count) logit_rows.push_back(begin + i);
  }
}

Batch make_batch(const StepPlan& plan) {
  Batch batch;
  std::vector<TokenId> tokens;
  for (const StepPlan::Run& run : plan.runs) {
    const Sequence& sequence = *run.sequence;
    const auto known = std::span(sequence.tokens).subspan(sequence.computed, run.count);
    tokens.assign(known.begin(), known.end());
    tokens.insert(tokens.end(), sequence.drafts.begin(), sequence.drafts.begin() + run.drafts);
    batch.add(tokens, sequence.computed, run.samples ? 1 + run.drafts : 0);
  }
  return batch;
}

}  // namespace quire
