#pragma once

#include "engine/pruning/token_scorer.h"

namespace quire {

// KVzip: the model is asked to say the prompt again, and reads it a second time, in parts. A token is worth the most attention that any query head of
// a KV head pays it or its neighbours then: what the model needs to say the text again it will need for any question about it.
class ZipScorer : public TokenScorer {
 public:
  ZipScorer(const PruningOptions& options, const ModelSpec& spec, const KvLayout& layout, uint32_t tokens,
            std::span<const TokenId> repeat_request);

  // Of its longest pass over a prompt of so many tokens.
  static uint32_t pass_tokens(uint32_t prompt, std::span<const TokenId> repeat_request);

  uint32_t observed_tokens() const override { return 0; }
  std::optional<ScoringPass> pass(uint32_t index, std::span<const TokenId> prompt) const override;
  void ask(const Seen& token, std::vector<Tap>& taps) const override {
    ask_by_kv_head(token, Tap::Join::most, taps);
  }

 protected:
  std::vector<float> scores(size_t layer, uint32_t head) const override;
  size_t value_count() const override { return values_of_all_heads(); }

 private:
  const std::vector<TokenId> request_;
};

}  // namespace quire
