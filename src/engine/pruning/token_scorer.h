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

// What is computed only for a scorer: tokens that it sees, whose rows are given up afterwards; or, without any, expectations.
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
  // Scores the first `tokens` of a prompt. Both must outlive it.
  TokenScorer(const PruningOptions& options, const ModelSpec& spec, const KvLayout& layout, uint32_t tokens);
  virtual ~TokenScorer() = default;

  uint32_t tokens() const { return tokens_; }
  uint32_t kept() const { return options_.kept_of(tokens_); }
  // So many of the last tokens must be computed under its eyes: they may not come from the cache.
  virtual uint32_t observed_tokens() const = 0;
  // What it wants to know of such a token; the taps join its values, which begin at `at` among those of the step.
  struct Seen {
    uint32_t place = 0, row = 0;  // in the batch, in its sequence
    size_t at = 0;
  };
  virtual void ask(const Seen& token, std::vector<Tap>& taps) const = 0;
  // What they have come to. Before a step it is part of the step's input, afterwards of its output.
  const std::vector<float>& values();
  virtual void take(std::span<const float> values) { values_.assign(values.begin(), values.end()); }
  // What it wants computed besides the prompt, one after the other; nothing if it has seen enough.
  virtual std::optional<ScoringPass> pass(uint32_t /*index*/, std::span<const TokenId> /*prompt*/) const {
    return std::nullopt;
  }
  // Of a pass without tokens: its expectations, and the values that they join and `take` gets afterwards.
  virtual std::vector<Expectation> expectations(std::vector<float>& /*values*/) const { return {}; }
  // Its passes come before the prompt, of which only the tokens that stay are computed in all layers.
  virtual bool chooses_before_prefill() const { return false; }
  // Of such a scorer: so many of the prompt's last tokens must be computed in its pass.
  virtual uint32_t observed_in_pass() const { return tokens_; }
  // All is forgotten: the prompt will be computed again.
  virtual void restart() { values_.clear(); }
  // The best rows and the window: of every head as many, or of all heads together.
  KeptRows choose() const;
  // Of one that chooses before the prompt is computed: the tokens that stay, ascending.
  std::vector<uint32_t> choose_tokens() const;

 protected:
  // Of a head's tokens, the larger the better. REQUIRES: the observed tokens were seen.
  virtual std::vector<float> scores(size_t layer, uint32_t head) const = 0;
  // How many values its taps join, before the first does.
  virtual size_t value_count() const { return 0; }

  // The layers that see everything, which alone are pruned.
  const std::vector<uint32_t>& full_layers() const { return full_layers_; }
  const KvLayerShape& shape(size_t layer) const;
  // Others have a state, or nothing.
  bool keeps_rows(size_t layer) const;
  uint32_t heads(size_t layer) const { return spec_.layers[layer].gqa().heads; }
  // Of values by full layer, [kv_heads, tokens] each: where a layer's begin, and all of them.
  size_t begin_of(size_t layer) const;
  size_t values_of_all_heads() const;
  // Taps all heads of a token at each of these layers into such values.
  void ask_by_kv_head(const Seen& token, Tap::Join join, std::vector<Tap>& taps) const;

  const PruningOptions options_;
  const ModelSpec& spec_;
  const KvLayout& layout_;
  const uint32_t tokens_;
  std::vector<float> values_;

 private:
  std::vector<uint32_t> full_layers_;
};

// Whether a policy leaves the heads of a prompt with unequal numbers of rows (decision 24): it shares one budget among them, and any
// cell of a page can hold any head's rows.
bool makes_heads_unequal(PruningPolicy policy, const KvLayout& layout);
// Throws Error if it does and such heads cannot be computed with.
void check_heads(PruningPolicy policy, const KvLayout& layout, const BackendTraits& backend);

// `repeat_request`: what asks the model to say a text again.
std::unique_ptr<TokenScorer> make_scorer(const PruningOptions& options, const ModelSpec& spec,
                                         const KvLayout& layout, uint32_t tokens,
                                         std::span<const TokenId> repeat_request);

}  // namespace quire
