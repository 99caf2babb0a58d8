#include "engine/batch.h"

namespace quire {

void Batch::add(std::span<const TokenId> run_tokens, uint32_t position, Logits logits) {
  const uint32_t begin = uint32_t(tokens.size());
  const uint32_t count = uint32_t(run_tokens.size());
  runs.push_back({begin, count, position});
  for (uint32_t i = 0; i < count; ++i) {
    tokens.push_back(run_tokens[i]);
    positions.push_back(position + i);
    run_of_token.push_back(uint32_t(runs.size() - 1));
    if (logits == Logits::all || (logits == Logits::last && i + 1 == count)) logit_rows.push_back(begin + i);
  }
}

Batch make_batch(const StepPlan& plan) {
  Batch batch;
  for (const StepPlan::Run& run : plan.runs) {
    const Sequence& sequence = *run.sequence;
    batch.add(std::span(sequence.tokens).subspan(sequence.computed, run.count), sequence.computed,
              run.samples ? Batch::Logits::last : Batch::Logits::none);
  }
  return batch;
}

}  // namespace quire
