#pragma once

#include <cstdint>

namespace quire::cuda {

// The sum of value(0) to value(count - 1), of a warp together, in the CPU's order (lanes.h): sixteen sums, then a tree. Every lane
// has the result.
template <class Value>
__device__ __forceinline__ float sum_in_lanes(uint32_t count, const Value& value) {
  const uint32_t lane = threadIdx.x % 16;
  float sum = 0;
  for (uint32_t i = lane; i < count; i += 16) sum += value(i);
#pragma unroll
  for (int width = 8; width > 0; width /= 2) sum += __shfl_down_sync(~0u, sum, width, 16);
  return __shfl_sync(~0u, sum, 0);
}

}  // namespace quire::cuda
