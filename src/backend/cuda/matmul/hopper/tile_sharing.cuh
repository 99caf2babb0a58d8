#pragma once

#include <cstdint>

#include "backend/cuda/matmul/product_plan.h"
#include "backend/cuda/ptx.cuh"

// Tiles whose slices are computed by several blocks (TileSchedule). Each block leaves its sums in global memory; the
// one that comes last adds them in order. Nobody waits for anybody, so it does not matter which blocks run at a time.

namespace quire::cuda {

struct TileSums {
  float4* slices;      // [shared tile][warpgroup][slice][4 registers][thread]
  uint32_t* counters;  // [shared tile], zero between products
};

template <uint32_t kTokens>
class SharedTile {
 public:
  static constexpr uint32_t kRegisters = kTokens / 2;

  __device__ __forceinline__ SharedTile(const TileSums& sums, const TileSchedule& schedule, uint32_t tile)
      : tile_(tile), counter_(sums.counters + tile - schedule.whole) {
    const size_t index = size_t(tile - schedule.whole) * 2 + threadIdx.x / 128;
    slices_ = sums.slices + index * schedule.slices * (kSliceFours * 128) + threadIdx.x % 128;
  }

  // The first block of a tile leaves the total of its slices as slice 0; others leave each of theirs.
  __device__ __forceinline__ void leave(uint32_t slice, const float (&sum)[kRegisters]) const {
    float4* to = slices_ + size_t(slice) * (kSliceFours * 128);
#pragma unroll
    for (uint32_t i = 0; i < kSliceFours; ++i) {
      __stcg(to + i * 128, make_float4(sum[4 * i], sum[4 * i + 1], sum[4 * i + 2], sum[4 * i + 3]));
    }
  }

  // After both warpgroups left all of a block's slices: true for the last block of the tile, which then sees what all left.
  __device__ __forceinline__ bool comes_last(const TileSchedule& schedule) const {
    __shared__ uint32_t came_before;
    static_assert(sizeof came_before <= kOwnSharedBytes);
    ptx::meet(3, 256);
    if (threadIdx.x == 0) {
      uint32_t before;
      asm volatile("atom.acq_rel.gpu.global.add.u32 %0, [%1], 1;" : "=r"(before) : "l"(counter_) : "memory");
      came_before = before;
      if (before + 1 == schedule.sharers(tile_)) *counter_ = 0;  // as the next product wants it
    }
    ptx::meet(3, 256);
    return came_before + 1 == schedule.sharers(tile_);
  }

  // The slices of a few numbers at a time are fetched together, for the memory's delay is what this takes.
  __device__ __forceinline__ void add_all(const TileSchedule& schedule, float (&total)[kRegisters]) const {
    constexpr uint32_t kBatch = kRegisters <= 64 && kSliceFours >= 8 ? 8 : 4, kMostSlices = 4;
    static_assert(kSliceFours % kBatch == 0);
    const uint32_t leading = schedule.leading_slices(tile_);
#pragma unroll
    for (uint32_t first = 0; first < kSliceFours; first += kBatch) {
      float4 sums[kMostSlices][kBatch];
#pragma unroll
      for (uint32_t slice = 0; slice < kMostSlices; ++slice) {
        const bool left = slice == 0 || slice >= leading;
        const float4* from = slices_ + (slice * kSliceFours + first) * 128;
#pragma unroll
        for (uint32_t i = 0; i < kBatch; ++i) {
          sums[slice][i] = left ? __ldcg(from + i * 128) : make_float4(-0.0f, -0.0f, -0.0f, -0.0f);
        }
      }
#pragma unroll
      for (uint32_t slice = 0; slice < kMostSlices; ++slice) {
#pragma unroll
        for (uint32_t i = 0; i < kBatch; ++i) {
          float* to = total + 4 * (first + i);
          const float4 more = sums[slice][i];
          to[0] = slice == 0 ? more.x : __fadd_rn(to[0], more.x);
          to[1] = slice == 0 ? more.y : __fadd_rn(to[1], more.y);
          to[2] = slice == 0 ? more.z : __fadd_rn(to[2], more.z);
          to[3] = slice == 0 ? more.w : __fadd_rn(to[3], more.w);
        }
      }
    }
  }

 private:
  static constexpr uint32_t kSliceFours = kRegisters / 4;

  uint32_t tile_;
  float4* slices_;
  uint32_t* counter_;
};

}  // namespace quire::cuda
