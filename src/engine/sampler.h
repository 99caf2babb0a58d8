#pragma once

#include <deque>
#include <span>
#include <vector>

#include "backend/backend.h"
#include "engine/scheduler.h"

namespace quire {

// The draw after the first `draw` of the sequence's drafts, from a row of logits. `seen`: what penalties count, if there
// are any; it must outlive the result.
SampleParams draw_params(const Sequence& sequence, uint32_t draw, std::span<const float> logits,
                         std::span<const SampleParams::Seen> seen);
bool has_penalties(const SamplingOptions& options);

// Prepares the draws of a step for the backend's `sample`: for each run that samples, in the plan's order, one after its
// last known token and one after each draft, as if all drafts before it had been drawn.
class Sampler {
 public:
  std::span<const SampleResult> sample(Backend& backend, const StepPlan& plan, const Rows& logits);

 private:
  std::deque<std::vector<SampleParams::Seen>> seen_;  // one per draw that has penalties
  std::vector<SampleParams> params_;
  std::vector<SampleResult> results_;
};

}  // namespace quire
