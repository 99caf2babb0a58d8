#pragma once

#include "backend/cpu/kernels.h"

// The delta rule, stated once for all instruction sets: plain vectors, each value's sums in one order, no operation contracted.
// Whoever includes it gets a copy of its own, compiled with its own flags.

namespace quire {
namespace {

#if defined(__AVX512F__)
inline constexpr size_t kDeltaBytes = 64;
#elif defined(__AVX__)
inline constexpr size_t kDeltaBytes = 32;
#else
inline constexpr size_t kDeltaBytes = 16;
#endif
typedef float DeltaLanes __attribute__((vector_size(kDeltaBytes)));
inline constexpr size_t kDeltaLanes = kDeltaBytes / sizeof(float);
inline constexpr size_t kDeltaVectors =
    2;  // that are worked on at a time: with their sums, as many as registers hold
inline constexpr size_t kDeltaSums = 4;  // of every fourth key, so that none waits for the one before
static_assert(kDeltaValues % (kDeltaVectors * kDeltaLanes) == 0);

[[gnu::always_inline]] inline DeltaLanes delta_load(const float* values) {
  DeltaLanes lanes;
  __builtin_memcpy(&lanes, values, sizeof(lanes));
  return lanes;
}

[[gnu::always_inline]] inline void delta_store(const DeltaLanes& lanes, float* values) {
  __builtin_memcpy(values, &lanes, sizeof(lanes));
}

// What is the same for all values of a token.
struct DeltaToken {
  const float *query, *key;
  float decay, beta;
};

// Some values of one token: what the state has for the key, decay * S^T k; then decay * S + k delta, and what the query reads
// there, in place of the values. Not inlined: unrolled in its caller, GCC 12 sees writes that there are not.
[[gnu::noinline]] void delta_step(const DeltaToken& token, size_t key_dim, float* state, float* values) {
  DeltaLanes sums[kDeltaVectors][kDeltaSums] = {}, delta[kDeltaVectors];
  for (size_t k = 0; k < key_dim; k += kDeltaSums) {
    for (size_t i = 0; i < kDeltaSums; ++i) {
      for (size_t v = 0; v < kDeltaVectors; ++v)
        sums[v][i] += delta_load(state + (k + i) * kDeltaValues + v * kDeltaLanes) * token.key[k + i];
    }
  }
  for (size_t v = 0; v < kDeltaVectors; ++v) {
    const DeltaLanes has = (sums[v][0] + sums[v][1]) + (sums[v][2] + sums[v][3]);
    delta[v] = (delta_load(values + v * kDeltaLanes) - has * token.decay) * token.beta;
    for (size_t i = 0; i < kDeltaSums; ++i) sums[v][i] = DeltaLanes{};
  }
  for (size_t k = 0; k < key_dim; k += kDeltaSums) {
    for (size_t i = 0; i < kDeltaSums; ++i) {
      for (size_t v = 0; v < kDeltaVectors; ++v) {
        float* at = state + (k + i) * kDeltaValues + v * kDeltaLanes;
        const DeltaLanes next = delta_load(at) * token.decay + delta[v] * token.key[k + i];
        delta_store(next, at);
        sums[v][i] += next * token.query[k + i];
      }
    }
  }
  for (size_t v = 0; v < kDeltaVectors; ++v)
    delta_store((sums[v][0] + sums[v][1]) + (sums[v][2] + sums[v][3]), values + v * kDeltaLanes);
}

void run_delta_rule(const DeltaRuleArgs& args) {
  alignas(64) float values[kDeltaValues] = {};
  for (size_t t = 0; t < args.tokens; ++t) {
    const DeltaToken token{args.query + t * args.stride, args.key + t * args.stride,
                           args.decay[t * args.gate_stride], args.beta[t * args.gate_stride]};
    for (size_t i = 0; i < args.width; ++i) values[i] = args.value[t * args.stride + i];
    for (size_t v = 0; v < kDeltaValues; v += kDeltaVectors * kDeltaLanes)
      delta_step(token, args.key_dim, args.state + v, values + v);
    for (size_t i = 0; i < args.width; ++i) args.out[t * args.out_stride + i] = values[i];
  }
}

}  // namespace
}  // namespace quire
