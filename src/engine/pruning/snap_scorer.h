#pragma once

#include "engine/pruning/pooled.h"
#include "engine/pruning/token_scorer.h"

namespace quire {

// SnapKV: a token is worth the attention that the last tokens of the prompt pay to it and its neighbours, by all query heads
// of a KV head together.
class SnapScorer : public TokenScorer {
 public:
  using TokenScorer::TokenScorer;

  uint32_t observed_tokens() const override { return options_.window; }
  void ask(const Seen& token, std::vector<Tap>& taps) const override {
    ask_by_kv_head(token, Tap::Join::sum, taps);
  }

 protected:
  std::vector<float> scores(size_t layer, uint32_t head) const override {
    return pooled(std::span(values_).subspan(begin_of(layer) + size_t(head) * tokens_, tokens_));
  }
  size_t value_count() const override { return values_of_all_heads(); }
};

}  // namespace quire
