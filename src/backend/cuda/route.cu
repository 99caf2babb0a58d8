#include "backend/cuda/device_math.h"
#include "backend/cuda/launch.cuh"
#include "backend/cuda/operations.h"
#include "backend/cuda/ptx.cuh"

namespace quire::cuda {
namespace {

constexpr uint32_t kWarps = 4;

// The largest of some values, and among equals the one with the lowest index. All lanes have it.
struct Best {
  float value;
  uint32_t index;

  __device__ __forceinline__ void take(float other, uint32_t other_index) {
    if (other > value || (other == value && other_index < index)) {
      value = other;
      index = other_index;
    }
  }
  __device__ __forceinline__ void share() {
#pragma unroll
    for (int width = 16; width > 0; width /= 2)
      take(__shfl_xor_sync(~0u, value, width), __shfl_xor_sync(~0u, index, width));
  }
};

// In the CPU's order: one sum, from the first value to the last.
__device__ __forceinline__ void softmax(float* values, uint32_t count) {
  const uint32_t lane = threadIdx.x % 32;
  float largest = -infinity();
  for (uint32_t i = lane; i < count; i += 32) largest = larger(largest, values[i]);
#pragma unroll
  for (int width = 16; width > 0; width /= 2) largest = larger(largest, __shfl_xor_sync(~0u, largest, width));
  for (uint32_t i = lane; i < count; i += 32) values[i] = float(exp(double(values[i] - largest)));
  __syncwarp();
  float sum = 0;
  for (uint32_t i = 0; i < count; ++i) sum += values[i];
  __syncwarp();
  for (uint32_t i = lane; i < count; i += 32) values[i] /= sum;
  __syncwarp();
}

// A warp has a token.
__global__ void __launch_bounds__(32 * kWarps) choose_experts(const DeviceRoute params) {
  ptx::follow_kernel_before();
  __shared__ float all_scores[kWarps][kMostExperts];
  __shared__ float all_shares[kWarps][32];
  const uint32_t token = blockIdx.x * kWarps + threadIdx.x / 32, lane = threadIdx.x % 32;
  if (token >= params.scores.rows) return;
  const uint32_t count = uint32_t(params.scores.width);
  float *scores = all_scores[threadIdx.x / 32], *shares = all_shares[threadIdx.x / 32];
  for (uint32_t i = lane; i < count; i += 32) {
    const float score = params.scores.data[token * params.scores.stride + i];
    scores[i] = isnan(score) ? -infinity() : score;  // no order survives NaN
  }
  __syncwarp();
  if (params.routing != Routing::top_then_softmax) softmax(scores, count);
  static_assert(kMostExperts <= 32 * 32);
  uint32_t taken = 0;  // of this lane's experts: bit j is expert 32 j + lane
  for (uint32_t k = 0; k < params.used; ++k) {
    Best best{-infinity(), count};
    for (uint32_t i = lane; i < count; i += 32) {
      if ((taken >> (i / 32) & 1) == 0) best.take(scores[i], i);
    }
    best.share();
    if (best.index % 32 == lane) taken |= 1u << (best.index / 32);
    if (lane == 0) {
      params.experts[token * params.used + k] = best.index;
      shares[k] = scores[best.index];
    }
  }
  __syncwarp();
  if (params.routing == Routing::top_then_softmax) softmax(shares, params.used);
  float sum = 1;
  if (params.routing == Routing::softmax_then_top_normalized) {
    sum = 0;
    for (uint32_t k = 0; k < params.used; ++k) sum += shares[k];
  }
  if (lane < params.used) params.shares[token * params.used + lane] = shares[lane] / sum;
}

}  // namespace

void route(const DeviceRoute& params, cudaStream_t stream) {
  CHECK(params.scores.width <= kMostExperts && params.used <= 32 && params.used <= params.scores.width);
  if (params.scores.rows == 0) return;
  launch(choose_experts,
         {.blocks = uint32_t(params.scores.rows + kWarps - 1) / kWarps, .threads = 32 * kWarps},
         Overlap::with_kernel_before, stream, params);
}

}  // namespace quire::cuda
