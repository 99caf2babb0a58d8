#include "engine/pruning/evaluator_scorer.h"

#include "engine/pruning/pooled.h"
#include "model/watched_shares.h"

namespace quire {

std::optional<ScoringPass> EvaluatorScorer::pass(uint32_t index, std::span<const TokenId> prompt) const {
  if (index > 0) return std::nullopt;
  const auto scored = prompt.first(tokens_);
  return ScoringPass{.tokens = {scored.begin(), scored.end()},
                     .row = 0,
                     .layers = options_.evaluator.layer + 1,
                     .observed = options_.window};
}

void EvaluatorScorer::see(Backend& backend, size_t layer, const AttendParams& params, uint32_t token,
                          uint32_t row) {
  if (layer != options_.evaluator.layer) return;
  const Rows shares = watched_shares(backend, params, token, row + 1, shares_);
  attention_.resize(tokens_);
  for (const uint32_t head : options_.evaluator.heads) {
    const float* share = shares.row(head);
    for (uint32_t i = 0; i <= row; ++i) attention_[i] += share[i];
  }
}

std::vector<float> EvaluatorScorer::scores(size_t, uint32_t) const {
  return pooled(attention_);
}

}  // namespace quire
