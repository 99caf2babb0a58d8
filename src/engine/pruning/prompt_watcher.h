#pragma once

#include <vector>

#include "engine/pruning/token_scorer.h"
#include "model/decoder.h"

namespace quire {

// In one step, shows scorers of prompts the tokens they want to see.
class PromptWatcher : public AttentionWatcher {
 public:
  // Both must outlive it.
  PromptWatcher(Backend& backend, const KvLayout& layout) : backend_(backend), layout_(layout) {}

  // A run of the batch whose first token has `row`, and of which the scorer sees those from `first_seen` on.
  void watch(TokenScorer& scorer, const TokenRun& run, uint32_t row, uint32_t first_seen) {
    for (uint32_t i = 0; i < run.count; ++i) {
      if (row + i >= first_seen) seen_.push_back({&scorer, run.begin + i, row + i});
    }
  }

  bool needed() const { return !seen_.empty(); }

  void see(size_t layer, const AttendParams& params) override {
    if (layout_.groups[layout_.places[layer].group].window > 0) return;
    for (const Seen& token : seen_) token.scorer->see(backend_, layer, params, token.place, token.row);
  }

 private:
  struct Seen {
    TokenScorer* scorer;
    uint32_t place, row;  // in the batch, in its sequence
  };
  Backend& backend_;
  const KvLayout& layout_;
  std::vector<Seen> seen_;
};

}  // namespace quire
