#pragma once

#include "backend/cuda/expert_kernels.h"
#include "backend/cuda/hopper/stream_product.cuh"

// Products of a mixture's experts where each has few tokens: the stream product (stream_product.cuh) over units, which
// are a group of row tiles of an item. Groups of warps take units in turn; no weight can be fetched before it is known
// who has tokens.

namespace quire::cuda {

struct ExpertStreamArguments {
  const uint8_t* weights;
  const uint8_t* activations;
  const uint32_t* item_count;
  const ExpertItem* items;
  size_t expert_bytes;
  uint32_t rows;         // of an expert
  uint32_t tile_groups;  // of an expert
  uint32_t slices;
  uint32_t slice_units;
  uint32_t chunk_units;
  uint32_t stages;
  uint32_t stage_bytes;
  uint32_t sum_buffers;
  uint32_t item_tokens;
};

__device__ __forceinline__ ExpertItem load_item(const ExpertItem* items, uint32_t index) {
  const uint4 all = __ldg(reinterpret_cast<const uint4*>(items + index));
  return {all.x, all.y, all.z, all.w};
}

// Where a warp's next chunk comes from.
template <WeightFormat kFormat, uint32_t kRowTiles>
class ExpertCursor {
 public:
  using Plain = StreamCursor<kFormat, kRowTiles>;

  __device__ __forceinline__ ExpertCursor(const ExpertStreamArguments& args, uint32_t unit, uint32_t units,
                                          uint32_t stride, uint32_t slice)
      : unit_(unit), units_(units), stride_(stride), slice_(slice) {
    if (unit_ < units_) open(args);
  }

  __device__ __forceinline__ bool done() const { return unit_ >= units_; }

  __device__ __forceinline__ void copy(const ExpertStreamArguments& args, uint32_t stage, uint32_t barrier,
                                       bool copies) const {
    const uint32_t n = min(args.chunk_units, left_);
    if (!copies) return;
    const uint32_t bytes = n * Plain::kUnitParts * count_ * kActivationRowBytes;
    ptx::arrive_expecting(barrier, n * kRowTiles * Plain::kUnitBytes + bytes);
#pragma unroll
    for (uint32_t m = 0; m < kRowTiles; ++m) {
      ptx::copy_bulk(stage + m * args.chunk_units * Plain::kUnitBytes, weight_ + m * tile_bytes(args),
                     n * Plain::kUnitBytes, barrier);
    }
    ptx::copy_bulk(stage + kRowTiles * args.chunk_units * Plain::kUnitBytes, activations_, bytes, barrier);
  }

  __device__ __forceinline__ void advance(const ExpertStreamArguments& args) {
    const uint32_t n = min(args.chunk_units, left_);
    weight_ += size_t(n) * Plain::kUnitBytes;
    activations_ += n * Plain::kUnitParts * count_ * kActivationRowBytes;
    left_ -= n;
    if (left_ > 0) return;
    unit_ += stride_;
    if (unit_ < units_) open(args);
  }

 private:
  __device__ __forceinline__ static size_t tile_bytes(const ExpertStreamArguments& args) {
    return size_t(args.slices) * args.slice_units * Plain::kUnitBytes;
  }

  __device__ __forceinline__ void open(const ExpertStreamArguments& args) {
    const ExpertItem item = load_item(args.items, unit_ / args.tile_groups);
    count_ = item.count;
    left_ = args.slice_units;
    weight_ = args.weights + item.expert * args.expert_bytes +
              unit_ % args.tile_groups * (kRowTiles * tile_bytes(args)) +
              size_t(slice_) * args.slice_units * Plain::kUnitBytes;
    const size_t parts = size_t(args.slice_units) * Plain::kUnitParts;  // of a slice
    activations_ = args.activations +
                   (item.first * parts * args.slices + slice_ * parts * item.count) * kActivationRowBytes;
  }

  uint32_t unit_, units_, stride_, slice_;
  uint32_t count_ = 0, left_ = 0;
  const uint8_t* weight_ = nullptr;
  const uint8_t* activations_ = nullptr;
};

template <WeightFormat kFormat, uint32_t kTokenTiles, class Output>
__global__ void __launch_bounds__(stream_shape(kFormat, kTokenTiles).warps * 32,
                                  stream_shape(kFormat, kTokenTiles).places)
    expert_stream(const __grid_constant__ ExpertStreamArguments args, const __grid_constant__ Output output) {
#if QUIRE_CUDA_HOPPER
  constexpr StreamShape kShape = stream_shape(kFormat, kTokenTiles);
  constexpr uint32_t kRowTiles = kShape.row_tiles, kWarps = kShape.warps;
  using Cursor = ExpertCursor<kFormat, kRowTiles>;
  using Plain = StreamCursor<kFormat, kRowTiles>;
  using Unit = StreamUnit<kFormat, kTokenTiles, kRowTiles>;

  // As in stream_product: the rings of all warps, their barriers, the sums of their slices.
  extern __shared__ __align__(128) uint8_t shared[];
  const uint32_t warp = __shfl_sync(~0u, threadIdx.x / 32, 0), lane = threadIdx.x % 32;
  const uint32_t ring_bytes = args.stages * args.stage_bytes;
  const uint32_t ring = ptx::shared_address(shared) + warp * ring_bytes;
  const uint32_t barriers = ptx::shared_address(shared) + kWarps * ring_bytes + warp * args.stages * 8;
  float* sums = reinterpret_cast<float*>(shared + kWarps * (ring_bytes + args.stages * 8));

  ptx::launch_dependents();
  if (lane == 0) {
    for (uint32_t i = 0; i < args.stages; ++i) ptx::init_barrier(barriers + i * 8, 1);
    ptx::publish_barriers();
  }
  __syncwarp();
  ptx::wait_for_kernel_before();

  const uint32_t group = warp / args.slices, slice = warp % args.slices, groups = kWarps / args.slices;
  const uint32_t units = *args.item_count * args.tile_groups;
  const uint32_t first = group * gridDim.x + blockIdx.x, stride = gridDim.x * groups;
  const bool copies = ptx::elect();
  Cursor cursor(args, first, units, stride, slice);
  for (uint32_t i = 0; i < args.stages && !cursor.done(); ++i, cursor.advance(args)) {
    cursor.copy(args, ring + i * args.stage_bytes, barriers + i * 8, copies);
  }

  const uint32_t tile_stride = args.chunk_units * Plain::kUnitBytes;
  const uint32_t warp_sums = args.item_tokens * stream_sum_stride(kFormat, kRowTiles);
  uint32_t stage = 0, parity = 0, buffer = 0;
  for (uint32_t unit = first; unit < units; unit += stride) {
    const ExpertItem item = load_item(args.items, unit / args.tile_groups);
    const ActivationOperands<kTokenTiles> operands(lane, item.count);
    const uint32_t part_bytes = item.count * kActivationRowBytes;
    typename Unit::Sums acc = {};
    for (uint32_t done = 0; done < args.slice_units; done += args.chunk_units) {
      const uint32_t weights = ring + stage * args.stage_bytes, barrier = barriers + stage * 8;
      const uint8_t* generic = shared + warp * ring_bytes + stage * args.stage_bytes;
      const uint32_t count = min(args.chunk_units, args.slice_units - done);
      ptx::wait_barrier(barrier, parity);
      for (uint32_t u = 0; u < count; ++u) {
        Unit::multiply(acc, generic + u * Plain::kUnitBytes, weights + u * Plain::kUnitBytes, tile_stride,
                       weights + kRowTiles * tile_stride + u * Plain::kUnitParts * part_bytes, part_bytes,
                       operands, lane);
      }
      __syncwarp();
      if (!cursor.done()) {
        cursor.copy(args, weights, barrier, copies);
        cursor.advance(args);
      }
      if (++stage == args.stages) {
        stage = 0;
        parity ^= 1;
      }
    }

    StreamSums<kFormat, kTokenTiles> tile_sums = {sums + (buffer * kWarps + group * args.slices) * warp_sums,
                                                  lane};
    const auto meet = [&] {
      if (args.slices > 1) {
        ptx::meet(1 + group, args.slices * 32);
      } else {
        __syncwarp();
      }
    };
    tile_sums.leave(acc, slice, item.count);
    meet();
    StreamArguments of_item = {};
    of_item.tokens = item.count;
    of_item.rows = args.rows;
    of_item.slices = args.slices;
    tile_sums.finish(of_item, output.of(item), unit % args.tile_groups, slice, nullptr);
    if (args.sum_buffers == 2) {
      buffer ^= 1;
    } else {
      meet();
    }
  }
#endif
}

template <WeightFormat kFormat, uint32_t kTokenTiles, class Output>
void launch_experts_stream_tiles(const ExpertCall<Output>& call) {
  const StreamPlan plan = plan_stream(kFormat, call.item_tokens);
  const WeightShape& shape = call.stack.shape;
  const KPlan k = shape.k_plan();
  ExpertStreamArguments args = {};
  args.weights = call.stack.data;
  args.activations = call.activations;
  args.item_count = call.item_count;
  args.items = call.items;
  args.expert_bytes = shape.bytes();
  args.rows = shape.rows;
  args.tile_groups = shape.tiles() / plan.shape.row_tiles;
  args.slices = k.slices;
  args.slice_units = k.slice_blocks * (kBlockK / stream_unit_k(kFormat));
  args.chunk_units = plan.chunk_units;
  args.stages = plan.stages;
  args.stage_bytes = plan.stage_bytes;
  args.sum_buffers = plan.sum_buffers;
  args.item_tokens = call.item_tokens;
  launch(expert_stream<kFormat, kTokenTiles, Output>,
         {call.device.multiprocessors, plan.shape.warps * 32, plan.shared_bytes}, Overlap::with_kernel_before,
         call.stream, args, call.output);
}

template <WeightFormat kFormat, class Output>
void launch_experts_stream(const ExpertCall<Output>& call) {
  CHECK(call.item_tokens <= kStreamTokens);
  if (call.item_tokens <= 8) {
    launch_experts_stream_tiles<kFormat, 1>(call);
  } else {
    launch_experts_stream_tiles<kFormat, 2>(call);
  }
}

}  // namespace quire::cuda
