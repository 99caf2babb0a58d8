#include "engine/pruning/evaluator_scorer.h"

#include "engine/pruning/pooled.h"

namespace quire {

std::optional<ScoringPass> EvaluatorPromptScorer::pass(uint32_t index,
                                                       std::span<const TokenId> prompt) const {
  if (index > 0) return std::nullopt;
  const auto scored = prompt.first(tokens_);
  return ScoringPass{.tokens = {scored.begin(), scored.end()},
                     .row = 0,
                     .layers = options_.evaluator.layer + 1,
                     .observed = options_.window};
}

void EvaluatorScorer::ask(const Seen& token, std::vector<Tap>& taps) const {
  for (const uint32_t head : options_.evaluator.heads) {
    taps.push_back({.join = Tap::Join::sum,
                    .layer = options_.evaluator.layer,
                    .token = token.place,
                    .first_head = head,
                    .width = tokens_,
                    .at = token.at});
  }
}

std::vector<float> EvaluatorScorer::scores(size_t, uint32_t) const {
  return pooled(values_);
}

}  // namespace quire
