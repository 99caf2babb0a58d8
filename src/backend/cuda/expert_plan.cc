#include "backend/cuda/expert_plan.h"

namespace quire::cuda {

ExpertPlan plan_experts(const DeviceTraits& device, const ExpertCounts& counts) {
  if (device.capability != 90) return {ProductKernel::plain, kPlainItemTokens};
  // An expert has no more pairs than there are tokens. With more, what counts is how many it has on average: where most
  // have few, it is cheaper to read an expert's weights again for those that have many.
  const uint32_t pairs = counts.pairs(), experts = counts.experts;
  if (counts.tokens <= 8 || pairs <= 5 * experts) return {ProductKernel::stream, 8};
  if (counts.tokens <= kStreamTokens || pairs <= 12 * experts) return {ProductKernel::stream, kStreamTokens};
  return {ProductKernel::tile, pairs <= 64 * experts ? 64u : 128u};
}

}  // namespace quire::cuda
