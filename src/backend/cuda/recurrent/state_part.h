#pragma once

#include <cstdint>

#include "backend/cuda/device_math.h"

// One token of a recurrence, for a part of one value's column of the state: every fourth key of it. The operations are the CPU's, in
// the CPU's order (backend/cpu/recurrence.h), so that four parts together have the CPU's bits.

#if defined(__CUDA_ARCH__)
#define QUIRE_UNROLL _Pragma("unroll")
#else
#define QUIRE_UNROLL
#endif

namespace quire::cuda {

// As the CPU's Recurrence: the delta rule, the same with a decay for each key, Mamba-2, Mamba-1.
enum class StateRule : uint8_t { delta, delta_of_keys, state_space, selective };
constexpr bool is_delta(StateRule rule) {
  return rule == StateRule::delta || rule == StateRule::delta_of_keys;
}

inline constexpr uint32_t kStateParts = 4;  // of a column: part i has keys i, i + 4, i + 8 ...

// Sums of the four parts: a part adds what its neighbour has, and then what the next two have.
QUIRE_BOTH float sum_of_parts(float s0, float s1, float s2, float s3) {
  return (s0 + s1) + (s2 + s3);
}

// kOwn: keys of a part, or more; those that there are not have states, keys and queries of 0, which no sum notices.
template <StateRule kRule, uint32_t kOwn>
struct StatePart {
  float state[kOwn];
  float rates[kRule == StateRule::selective ? kOwn : 1];

  // What the state has for the key, before it is decayed as a whole. `key`, `decays`: of the part's keys.
  QUIRE_BOTH float has(const float* key, const float* decays) const {
    float sum = 0;
    QUIRE_UNROLL
    for (uint32_t j = 0; j < kOwn; ++j)
      sum += (kRule == StateRule::delta_of_keys ? state[j] * decays[j] : state[j]) * key[j];
    return sum;
  }

  // What a token adds to the state for each unit of its key. `has`: of all parts.
  QUIRE_BOTH static float added(float value, float beta, float decay, float has) {
    if (kRule == StateRule::delta) return (value - has * decay) * beta;
    if (kRule == StateRule::delta_of_keys) return (value - has) * beta;
    return value * beta;
  }

  // Decays the state, adds to it, and returns what the query reads there. `beta`: of selective, the value's step.
  QUIRE_BOTH float advance(const float* key, const float* query, const float* decays, float decay, float beta,
                           float added) {
    float sum = 0;
    QUIRE_UNROLL
    for (uint32_t j = 0; j < kOwn; ++j) {
      float factor = decay;
      if (kRule == StateRule::delta_of_keys) factor = decays[j];
      if (kRule == StateRule::selective) factor = exp_of(rates[j] * beta);
      state[j] = state[j] * factor + added * key[j];
      sum += state[j] * query[j];
    }
    return sum;
  }
};

}  // namespace quire::cuda
