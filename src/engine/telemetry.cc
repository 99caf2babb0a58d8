#include "engine/telemetry.h"

#include <algorithm>

namespace quire {

std::vector<StepRecord> StepLog::since(uint64_t since) const {
  std::vector<StepRecord> records;
  const uint64_t oldest = total_ > ring_.size() ? total_ - ring_.size() : 0;
  const uint64_t first = std::max(since, oldest);
  if (first < total_) records.reserve(total_ - first);
  for (uint64_t i = first; i < total_; ++i) records.push_back(ring_[i % ring_.size()]);
  return records;
}

StepCost cost_of(const CostModel& model, const BatchView& batch, const KvLayout& layout) {
  StepCost all;
  double weights = 0;
  size_t next_logit = 0;
  for (const TokenRun& run : batch.runs) {
    uint32_t logit_rows = 0;
    for (; next_logit < batch.logit_rows.size() && batch.logit_rows[next_logit] < run.begin + run.count;
         ++next_logit)
      ++logit_rows;
    const StepCost cost =
        model.step({.sequences = 1, .tokens = run.count, .depth = run.row, .logit_rows = logit_rows}, layout);
    weights = std::max(weights, cost.weight_bytes);
    all += cost;
  }
  all.weight_bytes = weights;
  return all;
}

double attention_pairs(const BatchView& batch) {
  double pairs = 0;
  for (const TokenRun& run : batch.runs)
    pairs += double(run.count) * run.row + double(run.count) * (run.count + 1) / 2;
  return pairs;
}

}  // namespace quire
