#pragma once

#include <algorithm>

#include "engine/pruning/token_scorer.h"

namespace quire {

// Expected Attention: the queries to come are taken to be normally distributed like those of the prompt's last tokens before
// rotation, and to stand at one of the next positions. A token is worth the share of attention that a query head then
// expects to pay it, times the norm of its value; the query heads of a KV head count alike.
class ExpectedScorer : public TokenScorer {
 public:
  static constexpr uint32_t kSamples = 128;    // of the last tokens, whose queries stand for those to come
  static constexpr uint32_t kPositions = 512;  // after the prompt: their rotations are averaged
  static constexpr double kLeastShare = 0.02;  // added to every share: where attention is flat, values count

  ExpectedScorer(const PruningOptions& options, const ModelSpec& spec, const KvLayout& layout,
                 uint32_t tokens);

  uint32_t observed_tokens() const override { return kSamples; }
  void ask(const Seen& token, std::vector<Tap>& taps) const override;
  void take(std::span<const float> values) override;
  std::optional<ScoringPass> pass(uint32_t index, std::span<const TokenId> prompt) const override;
  std::vector<Expectation> expectations(std::vector<float>& values) const override;
  void restart() override;

 protected:
  std::vector<float> scores(size_t layer, uint32_t head) const override;
  size_t value_count() const override;

 private:
  // The rotation of one pair, or the mean of several.
  struct Rotation {
    double cos = 1, sin = 0;
  };
  // Brings a query from its position to those after the prompt; what is not rotated stays as it is.
  void move_ahead(std::span<float> query, size_t layer, uint32_t position) const;
  // What a layer's rows are worth, [kv_heads, tokens], by what was expected.
  std::vector<float> judged(size_t layer, const Expectation& expected, std::span<const float> values) const;
  uint32_t samples() const { return std::min(tokens_, kSamples); }
  size_t sample_width(size_t layer) const { return size_t(heads(layer)) * shape(layer).query_dim(); }
  // Where everything of the full layers is among the values of the pass.
  std::vector<Expectation> places(size_t& count) const;

  std::vector<std::vector<Rotation>> ahead_;  // [rope][pair]: the mean of the positions after the prompt
  std::vector<std::vector<float>> worth_;     // [layer], each [kv_heads, tokens]; empty: not known yet
};

}  // namespace quire
