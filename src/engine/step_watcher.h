#pragma once

#include <vector>

#include "engine/pruning/prompt_watcher.h"
#include "engine/sequence.h"
#include "model/watched_shares.h"

namespace quire {

// In one step, tells requests that watch a head where their tokens look.
class HeadWatcher : public AttentionWatcher {
 public:
  explicit HeadWatcher(Backend& backend) : backend_(backend) {}  // must outlive it

  // The run of the batch that computes some of the sequence's tokens. REQUIRES: it watches a head and is not pruned.
  void watch(Sequence& sequence, const TokenRun& run) { seen_.push_back({&sequence, run}); }
  bool needed() const { return !seen_.empty(); }

  void see(size_t layer, const AttendParams& params) override {
    for (const auto& [sequence, run] : seen_) {
      const HeadWatch& watch = *sequence->request.watch;
      if (layer != watch.layer) continue;
      for (uint32_t i = 0; i < run.count; ++i) {
        const uint32_t position = run.row + i;
        if (position < sequence->rows_told) continue;  // computed again after a preemption
        const Rows shares =
            watched_shares(backend_, params, run.begin + i, position + 1, shares_, watch.head);
        watch.on_row(position, {shares.row(watch.head), position + 1});
        sequence->rows_told = position + 1;
      }
    }
  }

 private:
  struct Seen {
    Sequence* sequence;
    TokenRun run;
  };
  Backend& backend_;
  std::vector<Seen> seen_;
  std::vector<float> shares_;
};

// All who watch one step.
class StepWatcher : public AttentionWatcher {
 public:
  StepWatcher(Backend& backend, const KvLayout& layout) : prompts(backend, layout), heads(backend) {}

  bool needed() const { return prompts.needed() || heads.needed(); }
  void see(size_t layer, const AttendParams& params) override {
    prompts.see(layer, params);
    heads.see(layer, params);
  }

  PromptWatcher prompts;
  HeadWatcher heads;
};

}  // namespace quire
