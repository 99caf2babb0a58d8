#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

#include "base/clock.h"
#include "model/cost.h"

namespace quire {

// One step as it was.
struct StepRecord {
  Clock::time_point begin;
  double ms = 0;
  uint32_t runs = 0;
  uint32_t prompt_tokens = 0;  // of prompts, in chunks
  uint32_t stream_tokens = 0;  // of sequences that had one token to do
  uint32_t draft_tokens = 0;
  StepCost cost;
  double attention_pairs = 0;  // (token, token it sees), in a layer that sees everything
};

// The last steps, the oldest first, and the sum of all there ever were. Engine thread only.
class StepLog {
 public:
  void add(const StepRecord& record) {
    ring_[total_++ % ring_.size()] = record;
    cost_ += record.cost;
    ms_ += record.ms;
  }
  uint64_t total() const { return total_; }
  const StepCost& cost() const { return cost_; }
  double ms() const { return ms_; }
  // Those from the `since`th on that are still kept.
  std::vector<StepRecord> since(uint64_t since) const;
  std::vector<StepRecord> last(uint64_t count) const { return since(total_ - std::min(total_, count)); }

 private:
  std::vector<StepRecord> ring_ = std::vector<StepRecord>(4096);
  uint64_t total_ = 0;
  StepCost cost_;
  double ms_ = 0;
};

// Operations and bytes of a batch: each run's own, and the weights once.
StepCost cost_of(const CostModel& model, const BatchView& batch, const KvLayout& layout);
double attention_pairs(const BatchView& batch);

}  // namespace quire
