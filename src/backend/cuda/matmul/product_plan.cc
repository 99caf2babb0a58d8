#include "backend/cuda/matmul/product_plan.h"

#include <algorithm>

namespace quire::cuda {
namespace {

StreamPlan plan_stream_chunks(WeightFormat format, uint32_t tokens, uint32_t chunk_units) {
  StreamPlan plan = {};
  plan.shape = stream_shape(format, tokens <= 8 ? 1 : 2);
  plan.chunk_units = chunk_units;
  plan.sum_buffers = tokens <= 2 ? 2 : 1;
  const uint32_t chunk_k = chunk_units * stream_unit_k(format);
  const uint32_t warps = plan.shape.warps, row_tiles = plan.shape.row_tiles;
  plan.stage_bytes = row_tiles * block_bytes(format) * chunk_k / kBlockK + tokens * chunk_k * 2;
  const uint32_t sums = plan.sum_buffers * warps * tokens * stream_sum_stride(format, row_tiles) * 4;
  const uint32_t room = (plan.shape.places == 2 ? kSharedBytesOfTwo : kSharedBytesOfOne) - sums;
  const uint32_t of_all_warps = warps * (plan.stage_bytes + 8);  // and a barrier
  plan.stages = std::min(room / of_all_warps, 8u);
  plan.shared_bytes = sums + plan.stages * of_all_warps;
  // Three blocks must not fit: two of one kernel would meet on a multiprocessor while the next one's wait.
  if (plan.shape.places == 2) plan.shared_bytes = std::max(plan.shared_bytes, 100'000u);
  return plan;
}

}  // namespace

StreamPlan plan_stream(WeightFormat format, uint32_t tokens) {
  // Copies below 2 KB lose speed, so one or two tokens, whose activations take little room, have longer chunks.
  if (tokens <= 2 && format != WeightFormat::q8_0) {
    const StreamPlan plan = plan_stream_chunks(format, tokens, 2);
    if (plan.stages >= 2) return plan;
  }
  return plan_stream_chunks(format, tokens, 1);
}

uint32_t tile_tokens_for(uint32_t tokens) {
  if (tokens <= 32) return 32;
  if (tokens <= 64) return 64;
  // A tile costs its tokens and, because its weights are read for fewer, about 24 more.
  const auto cost = [tokens](uint32_t width) { return (tokens + width - 1) / width * (width + 24); };
  return cost(128) < cost(192) ? 128 : 192;
}

TileSchedule schedule_tiles(const WeightShape& shape, uint32_t tokens, uint32_t blocks) {
  const uint32_t width = tile_tokens_for(tokens);
  const uint32_t tiles =
      (shape.padded_rows() + kTileProductRows - 1) / kTileProductRows * ((tokens + width - 1) / width);
  TileSchedule schedule = {tiles, shape.k_plan().slices, blocks, tiles};
  const uint32_t rest = tiles % blocks;
  // Sharing pays if no block then has as much as a whole tile.
  const uint32_t most = (rest * schedule.slices + blocks - 1) / blocks;
  if (rest > 0 && most < schedule.slices) schedule.whole = tiles - rest;
  return schedule;
}

ProductKernel choose_kernel(const DeviceTraits& device, uint32_t tokens) {
  if (device.capability != 90) return ProductKernel::plain;
  return tokens <= kStreamTokens ? ProductKernel::stream : ProductKernel::tile;
}

}  // namespace quire::cuda
