#include "backend/cuda/matmul/expert_plan.h"

namespace quire::cuda {

namespace {

bool streams(const ExpertShapes& shapes, uint32_t item_tokens) {
  return plan_expert_stream(shapes.gate_up, item_tokens).stages > 0 &&
         plan_expert_stream(shapes.down, item_tokens).stages > 0;
}

}  // namespace

ExpertPlan plan_experts(const DeviceTraits& device, const ExpertCounts& counts, const ExpertShapes& shapes) {
  if (device.capability != 90) return {ProductKernel::plain, kPlainItemTokens};
  // An expert has no more pairs than there are tokens. With more, what counts is how many it has on average: where most
  // have few, it is cheaper to read an expert's weights again for those that have many.
  const uint32_t pairs = counts.pairs(), experts = counts.experts;
  if ((counts.tokens <= 8 || pairs <= 5 * experts) && streams(shapes, 8)) return {ProductKernel::stream, 8};
  if ((counts.tokens <= kStreamTokens || pairs <= 12 * experts) && streams(shapes, kStreamTokens)) {
    return {ProductKernel::stream, kStreamTokens};
  }
  return {ProductKernel::tile, pairs <= 64 * experts ? 64u : 128u};
}

ExpertPlan plan_heads(const DeviceTraits& device, uint32_t tokens, const WeightShape& shape) {
  if (device.capability != 90) return {ProductKernel::plain, kPlainItemTokens};
  for (const uint32_t some : {8u, kStreamTokens})
    if (tokens <= some && plan_expert_stream(shape, some).stages > 0) return {ProductKernel::stream, some};
  return {ProductKernel::tile, tokens <= 64 ? 64u : 128u};
}

ExpertStreamPlan plan_expert_stream(const WeightShape& shape, uint32_t item_tokens) {
  const uint32_t token_tiles = item_tokens <= 8 ? 1 : 2;
  const uint32_t warps = expert_stream_warps(shape.format, token_tiles);
  const uint32_t row_tiles = stream_shape(shape.format, token_tiles).row_tiles;
  ExpertStreamPlan plan = {};
  plan.sum_buffers = token_tiles == 1 ? 2 : 1;
  plan.activation_bytes = item_tokens * shape.blocks() * kBlockK * 2;
  const uint32_t sums =
      plan.sum_buffers * warps * item_tokens * stream_sum_stride(shape.format, row_tiles) * 4;
  const uint32_t taken = plan.activation_bytes + sums + 8;  // and the barrier of the activations
  if (taken > kSharedBytesOfOne) return plan;
  // Copies below 2 KB lose speed; three stages or more hide the memory's delay.
  for (const uint32_t units : {2u, 1u}) {
    plan.chunk_units = units;
    plan.stage_bytes = row_tiles * block_bytes(shape.format) * units * stream_unit_k(shape.format) / kBlockK;
    const uint32_t stages = (kSharedBytesOfOne - taken) / (warps * (plan.stage_bytes + 8));
    plan.stages = stages < 2 ? 0 : stages < 6 ? stages : 6;
    if (plan.stages >= 3) break;
  }
  plan.shared_bytes = taken + plan.stages * warps * (plan.stage_bytes + 8);
  return plan;
}

}  // namespace quire::cuda
