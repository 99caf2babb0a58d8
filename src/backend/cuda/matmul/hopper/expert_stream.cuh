#pragma once

#include "backend/cuda/matmul/expert_kernels.h"
#include "backend/cuda/matmul/hopper/stream_product.cuh"

// Products of a mixture's experts where each has few tokens: the inside of the stream product (stream_product.cuh) over
// units, which are a group of row tiles of an item. A block has a contiguous range of units, item by item: the item's
// activations lie in shared memory for all its warps, and the warps' rings bring weights alone, ahead over the ends of
// items. No weight can be fetched before it is known who has tokens.

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
  uint32_t item_tokens;
  ExpertStreamPlan plan;
};

__device__ __forceinline__ ExpertItem load_item(const ExpertItem* items, uint32_t index) {
  const uint4 all = __ldg(reinterpret_cast<const uint4*>(items + index));
  return {all.x, all.y, all.z, all.w};
}

// The units of a block, one item after the other: [unit, end) of `item`.
struct ExpertSegment {
  uint32_t item, unit, end, last;

  __device__ __forceinline__ ExpertSegment(const ExpertStreamArguments& args, uint32_t units)
      : unit(uint32_t(uint64_t(units) * blockIdx.x / gridDim.x)),
        last(uint32_t(uint64_t(units) * (blockIdx.x + 1) / gridDim.x)) {
    item = unit / args.tile_groups;
    end = min((item + 1) * args.tile_groups, last);
  }
  __device__ __forceinline__ bool empty() const { return unit >= last; }
  __device__ __forceinline__ void advance(const ExpertStreamArguments& args) {
    unit = end;
    ++item;
    end = min(end + args.tile_groups, last);
  }
};

// Where a warp's next chunk of weights comes from.
template <WeightFormat kFormat, uint32_t kRowTiles>
class ExpertCursor {
 public:
  static constexpr uint32_t kUnitBytes = StreamCursor<kFormat, kRowTiles>::kUnitBytes;

  __device__ __forceinline__ ExpertCursor(const ExpertStreamArguments& args, const ExpertSegment& segment,
                                          uint32_t group, uint32_t groups, uint32_t slice)
      : segment_(segment),
        unit_(segment.unit + group),
        group_(group),
        groups_(groups),
        tile_bytes_(size_t(args.slices) * args.slice_units * kUnitBytes),
        slice_bytes_(size_t(slice) * args.slice_units * kUnitBytes) {
    open(args);
  }

  __device__ __forceinline__ bool done() const { return segment_.empty(); }

  __device__ __forceinline__ void copy(const ExpertStreamArguments& args, uint32_t stage,
                                       uint32_t barrier) const {
    const uint32_t bytes = min(args.plan.chunk_units, left_) * kUnitBytes;
    ptx::arrive_expecting(barrier, kRowTiles * bytes);
#pragma unroll
    for (uint32_t m = 0; m < kRowTiles; ++m) {
      ptx::copy_bulk(stage + m * args.plan.chunk_units * kUnitBytes, weight_ + m * tile_bytes_, bytes,
                     barrier);
    }
  }

  __device__ __forceinline__ void advance(const ExpertStreamArguments& args) {
    const uint32_t n = min(args.plan.chunk_units, left_);
    weight_ += size_t(n) * kUnitBytes;
    left_ -= n;
    if (left_ > 0) return;
    unit_ += groups_;
    open(args);
  }

 private:
  __device__ __forceinline__ void open(const ExpertStreamArguments& args) {
    while (unit_ >= segment_.end) {
      segment_.advance(args);
      if (segment_.empty()) return;
      unit_ = segment_.unit + group_;
    }
    left_ = args.slice_units;
    const uint32_t expert = load_item(args.items, segment_.item).expert;
    weight_ = args.weights + expert * args.expert_bytes + slice_bytes_ +
              (unit_ - segment_.item * args.tile_groups) * (kRowTiles * tile_bytes_);
  }

  ExpertSegment segment_;
  uint32_t unit_, group_, groups_;
  uint32_t left_ = 0;
  size_t tile_bytes_, slice_bytes_;
  const uint8_t* weight_ = nullptr;
};

template <WeightFormat kFormat, uint32_t kTokenTiles, class Output>
__global__ void __launch_bounds__(expert_stream_warps(kFormat, kTokenTiles) * 32, 1)
    expert_stream(const __grid_constant__ ExpertStreamArguments args, const __grid_constant__ Output output) {
#if QUIRE_CUDA_HOPPER
  constexpr uint32_t kRowTiles = stream_shape(kFormat, kTokenTiles).row_tiles;
  constexpr uint32_t kWarps = expert_stream_warps(kFormat, kTokenTiles);
  using Cursor = ExpertCursor<kFormat, kRowTiles>;
  using Unit = StreamUnit<kFormat, kTokenTiles, kRowTiles>;
  const ExpertStreamPlan& plan = args.plan;

  // Activations of an item, the rings of all warps, their barriers and that of the activations, the sums of slices.
  extern __shared__ __align__(128) uint8_t shared[];
  const uint32_t warp = __shfl_sync(~0u, threadIdx.x / 32, 0), lane = threadIdx.x % 32;
  const uint32_t ring_bytes = plan.stages * plan.stage_bytes;
  const uint32_t activations = ptx::shared_address(shared), rings = activations + plan.activation_bytes;
  const uint32_t ring = rings + warp * ring_bytes;
  const uint32_t all_barriers = rings + kWarps * ring_bytes, barriers = all_barriers + warp * plan.stages * 8;
  const uint32_t arrived = all_barriers + kWarps * plan.stages * 8;
  float* sums = reinterpret_cast<float*>(shared + (arrived + 8 - activations));

  ptx::launch_dependents();
  if (lane == 0) {
    for (uint32_t i = 0; i < plan.stages; ++i) ptx::init_barrier(barriers + i * 8, 1);
    if (warp == 0) ptx::init_barrier(arrived, 1);
    ptx::publish_barriers();
  }
  __syncwarp();
  ptx::wait_for_kernel_before();

  const uint32_t group = warp / args.slices, slice = warp % args.slices, groups = kWarps / args.slices;
  const bool copies = ptx::elect();
  ExpertSegment segment(args, *args.item_count * args.tile_groups);
  if (segment.empty()) return;
  Cursor cursor(args, segment, group, groups, slice);
  for (uint32_t i = 0; i < plan.stages && !cursor.done(); ++i, cursor.advance(args)) {
    if (copies) cursor.copy(args, ring + i * plan.stage_bytes, barriers + i * 8);
  }

  constexpr uint32_t kUnitParts = stream_unit_k(kFormat) / 64;
  const uint32_t tile_stride = plan.chunk_units * Cursor::kUnitBytes;
  const uint32_t warp_sums = args.item_tokens * stream_sum_stride(kFormat, kRowTiles);
  const auto meet = [&] {
    if (args.slices > 1) {
      ptx::meet(1 + group, args.slices * 32);
    } else {
      __syncwarp();
    }
  };
  uint32_t stage = 0, parity = 0, buffer = 0;
  for (uint32_t round = 0; !segment.empty(); ++round, segment.advance(args)) {
    const ExpertItem item = load_item(args.items, segment.item);
    const uint32_t part_bytes = item.count * kActivationRowBytes;
    __syncthreads();  // nobody reads the activations before
    if (threadIdx.x == 0) {
      const uint32_t bytes = args.slices * args.slice_units * kUnitParts * part_bytes;
      ptx::arrive_expecting(arrived, bytes);
      ptx::copy_bulk(activations,
                     args.activations + size_t(item.first) * args.slices * args.slice_units * kUnitParts *
                                            kActivationRowBytes,
                     bytes, arrived);
    }
    ptx::wait_barrier(arrived, round % 2);
    const ActivationOperands<kTokenTiles> operands(lane, item.count);
    const auto of_item = output.of(item);
    StreamArguments shape = {};
    shape.tokens = item.count;
    shape.rows = args.rows;
    shape.slices = args.slices;

    for (uint32_t unit = segment.unit + group; unit < segment.end; unit += groups) {
      typename Unit::Sums acc = {};
      uint32_t at = activations + slice * args.slice_units * kUnitParts * part_bytes;
      for (uint32_t done = 0; done < args.slice_units; done += plan.chunk_units) {
        const uint32_t weights = ring + stage * plan.stage_bytes, barrier = barriers + stage * 8;
        const uint8_t* generic = shared + (weights - activations);
        const uint32_t count = min(plan.chunk_units, args.slice_units - done);
        ptx::wait_barrier(barrier, parity);
        for (uint32_t u = 0; u < count; ++u, at += kUnitParts * part_bytes) {
          Unit::multiply(acc, generic + u * Cursor::kUnitBytes, weights + u * Cursor::kUnitBytes, tile_stride,
                         at, part_bytes, operands, lane);
        }
        __syncwarp();
        if (!cursor.done()) {
          if (copies) cursor.copy(args, weights, barrier);
          cursor.advance(args);
        }
        if (++stage == plan.stages) {
          stage = 0;
          parity ^= 1;
        }
      }

      StreamSums<kFormat, kTokenTiles> tile_sums = {
          sums + (buffer * kWarps + group * args.slices) * warp_sums, lane};
      tile_sums.leave(acc, slice, item.count);
      meet();
      tile_sums.finish(shape, of_item, unit - segment.item * args.tile_groups, slice, nullptr);
      if (plan.sum_buffers == 2) {
        buffer ^= 1;
      } else {
        meet();
      }
    }
  }
#endif
}

template <WeightFormat kFormat, uint32_t kTokenTiles, class Output>
void launch_experts_stream_tiles(const ExpertCall<Output>& call) {
  const WeightShape& shape = call.stack.shape;
  const KPlan k = shape.k_plan();
  ExpertStreamArguments args = {};
  args.weights = call.stack.data;
  args.activations = call.activations;
  args.item_count = call.item_count;
  args.items = call.items;
  args.expert_bytes = shape.bytes();
  args.rows = shape.rows;
  args.tile_groups = shape.tiles() / stream_shape(kFormat, kTokenTiles).row_tiles;
  args.slices = k.slices;
  args.slice_units = k.slice_blocks * (kBlockK / stream_unit_k(kFormat));
  args.item_tokens = call.item_tokens;
  args.plan = plan_expert_stream(shape, call.item_tokens);
  CHECK(args.plan.stages > 0);
  launch(
      expert_stream<kFormat, kTokenTiles, Output>,
      {call.device.multiprocessors, expert_stream_warps(kFormat, kTokenTiles) * 32, args.plan.shared_bytes},
      Overlap::with_kernel_before, call.stream, args, call.output);
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
