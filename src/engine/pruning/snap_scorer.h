#pragma once

#include "engine/pruning/token_scorer.h"

namespace quire {

// SnapKV: a token is worth the attention that the last tokens of the prompt pay to it and its neighbours, by all query heads
// of a KV head together.
class SnapScorer : public TokenScorer {
 public:
  using TokenScorer::TokenScorer;

  uint32_t observed_tokens() const override { return options_.window; }
  void see(Backend& backend, size_t layer, const AttendParams& params, uint32_t token,
           uint32_t position) override;
  void restart() override { attention_.clear(); }

 protected:
  std::vector<float> scores(size_t layer, uint32_t head) const override;

 private:
  std::vector<std::vector<float>> attention_;  // [layer], each [kv_heads, tokens]
  std::vector<float> shares_;                  // of one token: [heads, tokens]
};

}  // namespace quire
