#pragma once

#include <algorithm>

#include "engine/pruning/token_scorer.h"

namespace quire {

// A few heads of one layer, found beforehand, look at what matters for the whole model: a token is worth the attention that they
// pay it and its neighbours from the prompt's last tokens, and all heads of all layers keep the same tokens. The prompt is
// computed whole; what goes are its keys and values.
class EvaluatorScorer : public TokenScorer {
 public:
  using TokenScorer::TokenScorer;

  uint32_t observed_tokens() const override { return options_.window; }
  void ask(const Seen& token, std::vector<Tap>& taps) const override;

 protected:
  std::vector<float> scores(size_t layer, uint32_t head) const override;
  size_t value_count() const override { return tokens_; }
};

// EHPC: the same scores, but the prompt is computed up to those heads' layer only, and then the tokens that stay in all
// layers: memory and time.
class EvaluatorPromptScorer : public EvaluatorScorer {
 public:
  using EvaluatorScorer::EvaluatorScorer;

  uint32_t observed_tokens() const override { return 0; }
  std::optional<ScoringPass> pass(uint32_t index, std::span<const TokenId> prompt) const override;
  bool chooses_before_prefill() const override { return true; }
  uint32_t observed_in_pass() const override { return std::min(options_.window, tokens_); }
};

}  // namespace quire
