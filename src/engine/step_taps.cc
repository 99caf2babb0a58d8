#include "engine/step_taps.h"

#include <algorithm>

namespace quire {

void StepTaps::ask(Sequence& sequence, const TokenRun& run, StepInput& input) {
  if (sequence.request.watch) ask_head(sequence, run, input);
  if (sequence.budget && sequence.budget->scorer() != nullptr)
    return ask(*sequence.budget->scorer(), run, run.row, sequence.budget->first_seen(), input);
  if (!sequence.prune.is_due()) return;
  TokenScorer& scorer = *sequence.prune.scorer;
  ask(scorer, run, run.row, scorer.tokens() - std::min(scorer.tokens(), scorer.observed_tokens()), input);
}

void StepTaps::ask(TokenScorer& scorer, const TokenRun& run, uint32_t row, uint32_t first_seen,
                   StepInput& input) {
  if (row + run.count <= first_seen) return;
  const std::vector<float>& values = scorer.values();
  const size_t at = input.values.size();
  scored_.push_back({&scorer, at, values.size()});
  input.values.insert(input.values.end(), values.begin(), values.end());
  for (uint32_t i = first_seen - std::min(first_seen, row); i < run.count; ++i)
    scorer.ask({.place = run.begin + i, .row = row + i, .at = at}, input.taps);
}

void StepTaps::ask_head(Sequence& sequence, const TokenRun& run, StepInput& input) {
  const HeadWatch& watch = *sequence.request.watch;
  for (uint32_t i = 0; i < run.count; ++i) {
    const uint32_t position = run.row + i;
    if (position < sequence.rows_told) continue;  // computed again after a preemption
    const size_t at = input.values.size();
    watched_.push_back({&sequence, position, at});
    input.values.resize(at + position + 1);
    input.taps.push_back({.layer = watch.layer,
                          .token = run.begin + i,
                          .first_head = watch.head,
                          .width = position + 1,
                          .at = at});
  }
}

void StepTaps::tell(const StepOutput& output) {
  const std::span<const float> values = output.values;
  for (const Scored& one : scored_) one.scorer->take(values.subspan(one.at, one.count));
  for (const Watched& one : watched_) {
    one.sequence->request.watch->on_row(one.position, values.subspan(one.at, one.position + 1));
    one.sequence->rows_told = one.position + 1;
  }
}

}  // namespace quire
