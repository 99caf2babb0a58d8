#pragma once

#include <cstdint>

#include "backend/cuda/device_math.h"
#include "backend/cuda/sampling/sample_kernels.h"

// Which candidates of a row come first, without sorting it: a block of threads looks for the key at which a sum of
// weights, taken from the largest key on, reaches a target.

namespace quire::cuda {

inline constexpr uint32_t kSampleThreads = 1024;
inline constexpr uint32_t kBins = 2048;
inline constexpr uint32_t kMostListed = 4096;
inline constexpr uint32_t kTokenBits = 20;
inline constexpr float kBinsPerUnit = 64;
inline constexpr int kMassBits = 40;

// Larger for what comes first: the larger logit, then the lower token.
__device__ __forceinline__ uint64_t key_of(float logit, uint32_t token) {
  const uint32_t bits = bits_of(logit == 0 ? 0.0f : logit);  // -0 is equal to 0
  const uint32_t ordered = bits >> 31 != 0 ? ~bits : bits | 0x80000000u;
  return uint64_t(ordered) << kTokenBits | ((1u << kTokenBits) - 1 - token);
}
__device__ __forceinline__ uint32_t token_of(uint64_t key) {
  return (1u << kTokenBits) - 1 - uint32_t(key & ((1u << kTokenBits) - 1));
}

// e^(logit - largest) in units of 2^-kMassBits.
__device__ __forceinline__ uint64_t mass_of(float logit, float largest) {
  return uint64_t(exp(double(logit - largest)) * double(1ull << kMassBits));
}

// What the threads of a block share.
struct SelectShared {
  uint64_t keys[kMostListed], weights[kMostListed];
  uint32_t bins[kBins][3];  // three limbs of 14 bits, which 2^18 summands do not overflow
  uint64_t warps[32];
  uint32_t listed;
  uint64_t before;  // what the bins before `bin` weigh
  uint32_t bin;
};

// Integers: any order gives the same sum.
__device__ __forceinline__ uint64_t sum_of_threads(uint64_t value, SelectShared& shared) {
#pragma unroll
  for (int width = 16; width > 0; width /= 2) value += __shfl_xor_sync(~0u, value, width);
  __syncthreads();  // the sum before has been read
  if (threadIdx.x % 32 == 0) shared.warps[threadIdx.x / 32] = value;
  __syncthreads();
  uint64_t sum = 0;
  for (uint32_t w = 0; w < kSampleThreads / 32; ++w) sum += shared.warps[w];
  return sum;
}

__device__ __forceinline__ uint64_t largest_of_threads(uint64_t value, SelectShared& shared) {
#pragma unroll
  for (int width = 16; width > 0; width /= 2) value = max(value, __shfl_xor_sync(~0u, value, width));
  __syncthreads();
  if (threadIdx.x % 32 == 0) shared.warps[threadIdx.x / 32] = value;
  __syncthreads();
  uint64_t most = 0;
  for (uint32_t w = 0; w < kSampleThreads / 32; ++w) most = max(most, shared.warps[w]);
  return most;
}

// A row of candidates.
struct CandidateRow {
  const float* logits;
  uint32_t count;
  float temperature;  // that they are divided by

  // A broken model can give NaN, which no order survives: such a token is impossible.
  __device__ __forceinline__ float logit(uint32_t token) const {
    const float value = logits[token];
    return isnan(value) ? -infinity() : value / temperature;
  }

  template <class Use>
  __device__ __forceinline__ void each(const Use& use) const {
    for (uint32_t token = threadIdx.x; token < count; token += kSampleThreads) {
      const float own = logit(token);
      use(own, key_of(own, token), token);
    }
  }
};

__device__ __forceinline__ uint32_t bin_of(float logit, float largest) {
  const float distance = (largest - logit) * kBinsPerUnit;
  return distance < float(kBins - 1) ? uint32_t(distance) : kBins - 1;  // infinity and NaN: the last
}

// The bin in which the sum of weights reaches the target. A thread has two bins.
__device__ __forceinline__ void find_bin(uint64_t target, SelectShared& shared) {
  static_assert(kBins == 2 * kSampleThreads);
  const auto weight = [&](uint32_t bin) {
    const uint32_t* limbs = shared.bins[bin];
    return uint64_t(limbs[0]) + (uint64_t(limbs[1]) << 14) + (uint64_t(limbs[2]) << 28);
  };
  const uint64_t first = weight(2 * threadIdx.x), second = weight(2 * threadIdx.x + 1);
  uint64_t up_to = first + second;
#pragma unroll
  for (uint32_t width = 1; width < 32; width *= 2) {
    const uint64_t other = __shfl_up_sync(~0u, up_to, width);
    if (threadIdx.x % 32 >= width) up_to += other;
  }
  if (threadIdx.x % 32 == 31) shared.warps[threadIdx.x / 32] = up_to;
  __syncthreads();
  for (uint32_t w = 0; w < threadIdx.x / 32; ++w) up_to += shared.warps[w];
  const uint64_t before = up_to - first - second;
  if (before < target && target <= up_to) {
    const bool in_first = target <= before + first;
    shared.bin = 2 * threadIdx.x + (in_first ? 0 : 1);
    shared.before = in_first ? before : before + first;
  }
  __syncthreads();
}

enum class Weight64 { one, mass };

// The key of the last candidate of those from `from_key` on whose predecessors weigh less than `target`; sets `uncertain`
// where there are too many candidates of almost one logit. REQUIRES: all weigh at least `target`.
__device__ __forceinline__ uint64_t select_key(const CandidateRow& row, float largest, uint64_t from_key,
                                               Weight64 kind, uint64_t target, SelectShared& shared,
                                               bool& uncertain) {
  const auto weight = [&](float logit) {
    return kind == Weight64::one ? uint64_t(1) : mass_of(logit, largest);
  };
  for (uint32_t i = threadIdx.x; i < kBins * 3; i += kSampleThreads) (&shared.bins[0][0])[i] = 0;
  if (threadIdx.x == 0) shared.listed = 0;
  __syncthreads();
  row.each([&](float logit, uint64_t key, uint32_t) {
    if (key < from_key) return;
    const uint64_t own = weight(logit);
    uint32_t* bin = shared.bins[bin_of(logit, largest)];
    if (const uint32_t low = uint32_t(own & 0x3fff)) atomicAdd(bin, low);
    if (const uint32_t middle = uint32_t(own >> 14 & 0x3fff)) atomicAdd(bin + 1, middle);
    if (const uint32_t high = uint32_t(own >> 28)) atomicAdd(bin + 2, high);
  });
  __syncthreads();
  find_bin(target, shared);
  const uint64_t before = shared.before;
  const uint32_t bin = shared.bin;
  row.each([&](float logit, uint64_t key, uint32_t) {
    if (key < from_key || bin_of(logit, largest) != bin) return;
    const uint32_t at = atomicAdd(&shared.listed, 1);
    if (at >= kMostListed) return;
    shared.keys[at] = key;
    shared.weights[at] = weight(logit);
  });
  __syncthreads();
  const uint32_t listed = shared.listed;
  __syncthreads();
  if (listed > kMostListed) {
    uncertain = true;
    return from_key;
  }
  uint64_t found = 0;  // the largest key whose candidates from it on reach the target
  for (int bit = 32 + int(kTokenBits) - 1; bit >= 0; --bit) {
    const uint64_t wanted = found | uint64_t(1) << bit;
    uint64_t own = 0;
    for (uint32_t i = threadIdx.x; i < listed; i += kSampleThreads)
      if (shared.keys[i] >= wanted) own += shared.weights[i];
    if (before + sum_of_threads(own, shared) >= target) found = wanted;
  }
  __syncthreads();  // the lists may be written again
  return found;
}

}  // namespace quire::cuda
