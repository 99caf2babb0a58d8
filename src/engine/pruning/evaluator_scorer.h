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
  void see(Backend& backend, size_t layer, const AttendParams& params, uint32_t token, uint32_t row) override;
  void restart() override { attention_.clear(); }

 protected:
  std::vector<float> scores(size_t layer, uint32_t head) const override;

 private:
  std::vector<float> attention_;  // [tokens]
  std::vector<float> shares_;     // of one token: [heads, tokens]
};

}  // namespace quire
