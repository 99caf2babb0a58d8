#pragma once

#include <cstdint>

#include "backend/cuda/matmul/product_plan.h"
#include "backend/cuda/ptx.cuh"

// Tiles whose slices are computed by several blocks (TileSchedule). Each block leaves its sums in global memory; the
// one that comes last adds them in order. Nobody waits for anybody, so it does not matter which blocks run at a time.

namespace quire::cuda {

struct TileSums {
  float4* slices;      // [shared tile][warpgroup][slice][4 registers][thread]
  uint32_t* counters;  // [shared tile][warpgroup], zero between products
};

template <uint32_t kTokens>
class SharedTile {
 public:
  static constexpr uint32_t kRegisters = kTokens / 2;

  __device__ __forceinline__ SharedTile(const TileSums& sums, const TileSchedule& schedule, uint32_t tile)
      : tile_(tile), warpgroup_(threadIdx.x / 128), thread_(threadIdx.x % 128) {
    const size_t index = size_t(tile - schedule.whole) * 2 + warpgroup_;
    slices_ = sums.slices + index * schedule.slices * (kSliceFours * 128) + thread_;
    counter_ = sums.counters + index;
  }

  // The first block of a tile leaves the total of its slices as slice 0; others leave each of theirs.
  __device__ __forceinline__ void leave(uint32_t slice, const float (&sum)[kRegisters]) const {
    float4* to = slices_ + size_t(slice) * (kSliceFours * 128);
#pragma unroll
    for (uint32_t i = 0; i < kSliceFours; ++i) {
      __stcg(to + i * 128, make_float4(sum[4 * i], sum[4 * i + 1], sum[4 * i + 2], sum[4 * i + 3]));
    }
  }

  // After all of a block's slices are left: true for the last block of the tile, which then sees what all left.
  __device__ __forceinline__ bool comes_last(const TileSchedule& schedule) const {
    __shared__ uint32_t came_before[2];
    static_assert(sizeof came_before <= kOwnSharedBytes);
    ptx::meet(1 + warpgroup_, 128);
    if (thread_ == 0) {
      uint32_t before;
      asm volatile("atom.acq_rel.gpu.global.add.u32 %0, [%1], 1;" : "=r"(before) : "l"(counter_) : "memory");
      came_before[warpgroup_] = before;
      if (before + 1 == schedule.sharers(tile_)) *counter_ = 0;  // as the next product wants it
    }
    ptx::meet(1 + warpgroup_, 128);
    return came_before[warpgroup_] + 1 == schedule.sharers(tile_);
  }

  __device__ __forceinline__ void add_all(const TileSchedule& schedule, float (&total)[kRegisters]) const {
#pragma unroll
    for (uint32_t i = 0; i < kSliceFours; ++i) {
      const float4 four = __ldcg(slices_ + i * 128);
      total[4 * i] = four.x;
      total[4 * i + 1] = four.y;
      total[4 * i + 2] = four.z;
      total[4 * i + 3] = four.w;
    }
#pragma unroll 1
    for (uint32_t slice = schedule.leading_slices(tile_); slice < schedule.slices; ++slice) {
      const float4* from = slices_ + size_t(slice) * (kSliceFours * 128);
#pragma unroll
      for (uint32_t i = 0; i < kSliceFours; ++i) {
        const float4 four = __ldcg(from + i * 128);
        total[4 * i] = __fadd_rn(total[4 * i], four.x);
        total[4 * i + 1] = __fadd_rn(total[4 * i + 1], four.y);
        total[4 * i + 2] = __fadd_rn(total[4 * i + 2], four.z);
        total[4 * i + 3] = __fadd_rn(total[4 * i + 3], four.w);
      }
    }
  }

 private:
  static constexpr uint32_t kSliceFours = kRegisters / 4;

  uint32_t tile_, warpgroup_, thread_;
  float4* slices_;
  uint32_t* counter_;
};

}  // namespace quire::cuda
