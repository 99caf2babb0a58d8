#pragma once

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

  // The spec must outlive it.
  ExpectedScorer(const PruningOptions& options, const ModelSpec& spec, const KvLayout& layout,
                 uint32_t tokens);

  uint32_t observed_tokens() const override { return kSamples; }
  void see(Backend& backend, size_t layer, const AttendParams& params, uint32_t token,
           uint32_t position) override;
  void restart() override;

 protected:
  std::vector<float> scores(size_t layer, uint32_t head) const override;

 private:
  // The rotation of one pair, or the mean of several.
  struct Turn {
    double cos = 1, sin = 0;
  };
  // Brings a query from its position to those after the prompt; what is not rotated stays as it is.
  void move_ahead(std::span<float> query, size_t layer, uint32_t position) const;
  // Turns the samples of a layer into its scores, once all are there.
  void judge(Backend& backend, size_t layer, const AttendParams& params, uint32_t token);

  const ModelSpec& spec_;
  std::vector<std::vector<Turn>> ahead_;     // [rope][pair]: the mean of the positions after the prompt
  std::vector<std::vector<float>> samples_;  // [layer], each [samples, heads * head_dim]
  std::vector<std::vector<float>> worth_;    // [layer], each [kv_heads, tokens]
};

}  // namespace quire
