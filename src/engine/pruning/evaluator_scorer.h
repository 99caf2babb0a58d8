#pragma once

#include "engine/pruning/token_scorer.h"

namespace quire {

// EHPC: a few heads of an early layer, found beforehand, look at what matters for the whole model. The prompt is computed up to
// that layer; a token is worth the attention that these heads pay it from the prompt's last tokens. Only those that stay are
// computed in all layers.
class EvaluatorScorer : public TokenScorer {
 public:
  using TokenScorer::TokenScorer;

  uint32_t observed_tokens() const override { return 0; }
  std::optional<ScoringPass> pass(uint32_t index, std::span<const TokenId> prompt) const override;
  bool chooses_before_prefill() const override { return true; }
  void ask(const Seen& token, std::vector<Tap>& taps) const override;

 protected:
  std::vector<float> scores(size_t layer, uint32_t head) const override;
  size_t value_count() const override { return tokens_; }
};

}  // namespace quire
