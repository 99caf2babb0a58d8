#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "backend/backend.h"
#include "engine/pruning/pruning_options.h"
#include "kv/kv_cache.h"
#include "model/model_spec.h"

namespace quire {

// Tokens that are computed only to be seen by a scorer. Their rows are given up afterwards.
struct ScoringPass {
  std::vector<TokenId> tokens;
  uint32_t row = 0;       // and position of the first
  uint32_t layers = 0;    // the first so many are computed
  uint32_t observed = 0;  // so many of the last tokens are seen
};

// Says of each token of one prompt how much it is worth keeping, for every KV head of every layer that sees everything. What
// it says depends on the prompt alone: it is told of the same tokens, in the same order, whatever the chunks and neighbours.
// Engine thread only.
class TokenScorer {
 public:
  // Scores the first `tokens` of a prompt. The layout must outlive it.
  TokenScorer(const PruningOptions& options, const KvLayout& layout, uint32_t tokens);
  virtual ~TokenScorer() = default;

  uint32_t tokens() const { return tokens_; }
  uint32_t kept() const { return options_.kept_of(tokens_); }
  // So many of the last tokens must be computed under its eyes: they may not come from the cache.
  virtual uint32_t observed_tokens() const = 0;
  // One of those at one layer, before its attention. `token` is its place in the batch, `position` in the prompt.
  virtual void see(Backend& backend, size_t layer, const AttendParams& params, uint32_t token,
                   uint32_t position) = 0;
  // What it wants computed besides the prompt, one after the other; nothing if it has seen enough.
  virtual std::optional<ScoringPass> pass(uint32_t /*index*/, std::span<const TokenId> /*prompt*/) const {
    return std::nullopt;
  }
  // Its passes come before the prompt, of which only the tokens that stay are computed in all layers.
  virtual bool chooses_before_prefill() const { return false; }
  // Its heads share one budget: those whose scores are larger keep more rows than others.
  virtual bool splits_by_head() const { return true; }
  // All is forgotten: the prompt will be computed again.
  virtual void restart() = 0;
  // The best rows and the window: of every head as many, or of all heads together.
  KeptRows choose() const;
  // Of one that chooses before the prompt is computed: the tokens that stay, ascending.
  std::vector<uint32_t> choose_tokens() const;

 protected:
  // Of a head's tokens, the larger the better. REQUIRES: the observed tokens were seen.
  virtual std::vector<float> scores(size_t layer, uint32_t head) const = 0;

  const PruningOptions options_;
  const KvLayout& layout_;
  const uint32_t tokens_;
};

// `repeat_request`: what asks the model to say a text again.
std::unique_ptr<TokenScorer> make_scorer(const PruningOptions& options, const ModelSpec& spec,
                                         const KvLayout& layout, uint32_t tokens,
                                         std::span<const TokenId> repeat_request);

}  // namespace quire
