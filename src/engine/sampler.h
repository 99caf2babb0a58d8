#pragma once

#include <span>
#include <vector>

#include "backend/backend.h"
#include "engine/scheduler.h"

namespace quire {

// Prepares the draws of a step for the backend's `sample`: one for each run that samples, in the plan's
// order.
class Sampler {
 public:
  std::span<const SampleResult> sample(Backend& backend, const StepPlan& plan, const Rows& logits);

 private:
  std::vector<std::vector<SampleParams::Seen>> seen_;
  std::vector<SampleParams> params_;
  std::vector<SampleResult> results_;
};

}  // namespace quire
