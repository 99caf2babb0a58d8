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

__device__ __forceinline__ float score_of(RouterScore kind, float x) {
  if (kind == RouterScore::sigmoid) return 1.0f / (1.0f + float(exp(double(-x))));
  if (kind == RouterScore::sqrt_softplus)
    return square_root(larger(x, 0.0f) + float(log1p(exp(-fabs(double(x))))));
  return x;
}

// The best of those whose bit in this lane is not taken: bit j is value 32 j + lane.
__device__ __forceinline__ Best best_left(const float* values, uint32_t count, uint32_t taken) {
  const uint32_t lane = threadIdx.x % 32;
  Best best{-infinity(), count};
  for (uint32_t i = lane; i < count; i += 32) {
    if ((taken >> (i / 32) & 1) == 0) best.take(values[i], i);
  }
  best.share();
  return best;
}

// Leaves those of the best groups a chance, and no others: the CPU's sums in the CPU's order.
__device__ __forceinline__ void keep_groups(const Routing& routing, float* values, uint32_t count,
                                            float* of_groups) {
  const uint32_t lane = threadIdx.x % 32, size = count / routing.groups;
  for (uint32_t g = 0; g < routing.groups; ++g) {
    uint32_t taken = 0;
    float sum = 0;
    for (uint32_t k = 0; k < routing.group_best && k < size; ++k) {
      const Best best = best_left(values + g * size, size, taken);
      if (best.index % 32 == lane) taken |= 1u << (best.index / 32);
      sum += best.value;
    }
    if (lane == 0) of_groups[g] = sum;
  }
  __syncwarp();
  uint32_t kept = 0;  // of groups
  for (uint32_t k = 0; k < routing.groups_used; ++k) {
    const Best best = best_left(of_groups, routing.groups, kept);
    if (best.index % 32 == lane) kept |= 1u << (best.index / 32);
  }
  for (uint32_t g = 0; g < routing.groups; ++g) {
    if ((__shfl_sync(~0u, kept, g % 32) >> (g / 32) & 1) != 0) continue;
    for (uint32_t i = lane; i < size; i += 32) values[g * size + i] = -infinity();
  }
  __syncwarp();
}

// The softmax of the best among those left that are near it; the sum in order, as on the CPU.
__device__ __forceinline__ float sparse_share(const float* scores, uint32_t count, float nearness,
                                              const Best& best, uint32_t taken) {
  float sum = 0;
  for (uint32_t i = 0; i < count; ++i) {
    const bool gone = (__shfl_sync(~0u, taken, i % 32) >> (i / 32) & 1) != 0;
    const float distance = (best.value - scores[i]) / larger(fabsf(scores[i]), best.value);
    if (!gone && !(distance > nearness)) sum += float(exp(double(scores[i] - best.value)));
  }
  return 1.0f / larger(sum, kLeastShareSum);
}

// A warp has a token.
__global__ void __launch_bounds__(32 * kWarps) choose_experts(const DeviceRoute params) {
  ptx::follow_kernel_before();
  __shared__ float all_scores[kWarps][kMostExperts];
  __shared__ float all_choices[kWarps][kMostExperts];
  __shared__ float all_groups[kWarps][kMostExperts];
  __shared__ float all_shares[kWarps][32];
  const uint32_t token = blockIdx.x * kWarps + threadIdx.x / 32, lane = threadIdx.x % 32;
  if (token >= params.scores.rows) return;
  const uint32_t count = uint32_t(params.scores.width);
  const Routing& routing = params.routing;
  float *scores = all_scores[threadIdx.x / 32], *shares = all_shares[threadIdx.x / 32];
  for (uint32_t i = lane; i < count; i += 32) {
    const float score = params.scores.data[token * params.scores.stride + i];
    scores[i] = score_of(routing.score, isnan(score) ? -infinity() : score);  // no order survives NaN
  }
  __syncwarp();
  if (routing.score == RouterScore::softmax) softmax(scores, count);
  const float* choices = scores;
  if (params.choice_bias != nullptr || routing.groups > 1) {
    float* own = all_choices[threadIdx.x / 32];
    for (uint32_t i = lane; i < count; i += 32)
      own[i] = params.choice_bias == nullptr ? scores[i] : scores[i] + params.choice_bias[i];
    __syncwarp();
    if (routing.groups > 1) keep_groups(routing, own, count, all_groups[threadIdx.x / 32]);
    choices = own;
  }
  static_assert(kMostExperts <= 32 * 32);
  const bool sparse = routing.score == RouterScore::sparse_mixer;
  uint32_t taken = 0;  // of this lane's experts: bit j is expert 32 j + lane
  for (uint32_t k = 0; k < params.used; ++k) {
    const Best best = best_left(choices, count, taken);
    const float share = sparse ? sparse_share(scores, count, routing.nearness, best, taken) : 0;
    if (best.index % 32 == lane) taken |= 1u << (best.index / 32);
    if (lane == 0) {
      params.experts[token * params.used + k] = best.index;
      shares[k] = sparse ? share : scores[best.index];
    }
  }
  __syncwarp();
  if (routing.score == RouterScore::softmax_of_chosen) softmax(shares, params.used);
  float sum = 1;
  if (routing.normalized && !sparse && routing.score != RouterScore::softmax_of_chosen) {
    sum = 0;
    for (uint32_t k = 0; k < params.used; ++k) sum += shares[k];
    sum = larger(sum, kLeastShareSum);
  }
  if (lane >= params.used) return;
  const float share = shares[lane] / sum * routing.scale;
  const uint32_t at = token * params.used + lane;
  params.shares[at] =
      params.share_scales == nullptr ? share : share * params.share_scales[params.experts[at]];
}

}  // namespace

void route(const DeviceRoute& params, cudaStream_t stream) {
  CHECK(params.scores.width <= kMostExperts && params.used <= 32 && params.used <= params.scores.width);
  CHECK(params.routing.groups >= 1 && params.scores.width % params.routing.groups == 0);
  if (params.scores.rows == 0) return;
  launch(choose_experts,
         {.blocks = uint32_t(params.scores.rows + kWarps - 1) / kWarps, .threads = 32 * kWarps},
         Overlap::with_kernel_before, stream, params);
}

}  // namespace quire::cuda
