#pragma once

#include "backend/cpu/kernels.h"

// The delta rule, stated once for all instruction sets: plain vectors, each value's sums in one order, no operation contracted.
// Whoever includes it gets a copy of its own, compiled with its own flags.

namespace quire {
namespace {

typedef float DeltaLanes __attribute__((vector_size(64)));
inline constexpr size_t kDeltaLanes = sizeof(DeltaLanes) / sizeof(float);
inline constexpr size_t kDeltaVectors = kDeltaValues / kDeltaLanes;
inline constexpr size_t kDeltaSums = 4;  // of every fourth key, so that none waits for the one before

[[gnu::always_inline]] inline DeltaLanes delta_load(const float* values) {
  DeltaLanes lanes;
  __builtin_memcpy(&lanes, values, sizeof(lanes));
  return lanes;
}

[[gnu::always_inline]] inline void delta_store(const DeltaLanes& lanes, float* values) {
  __builtin_memcpy(values, &lanes, sizeof(lanes));
}

[[gnu::always_inline]] inline DeltaLanes delta_total(const DeltaLanes* sums) {
  return (sums[0] + sums[1]) + (sums[2] + sums[3]);
}

// What the state has for a key: decay * S^T k.
[[gnu::always_inline]] inline void delta_read(const DeltaRuleArgs& args, const float* key, DeltaLanes* read) {
  DeltaLanes sums[kDeltaVectors][kDeltaSums] = {};
  for (size_t k = 0; k < args.key_dim; k += kDeltaSums) {
    for (size_t i = 0; i < kDeltaSums; ++i) {
      for (size_t v = 0; v < kDeltaVectors; ++v)
        sums[v][i] += delta_load(args.state + (k + i) * kDeltaValues + v * kDeltaLanes) * key[k + i];
    }
  }
  for (size_t v = 0; v < kDeltaVectors; ++v) read[v] = delta_total(sums[v]);
}

// decay * S + k delta, and what a query reads there.
[[gnu::always_inline]] inline void delta_write(const DeltaRuleArgs& args, const float* key,
                                               const float* query, float decay, const DeltaLanes* delta,
                                               DeltaLanes* read) {
  DeltaLanes sums[kDeltaVectors][kDeltaSums] = {};
  for (size_t k = 0; k < args.key_dim; k += kDeltaSums) {
    for (size_t i = 0; i < kDeltaSums; ++i) {
      for (size_t v = 0; v < kDeltaVectors; ++v) {
        float* at = args.state + (k + i) * kDeltaValues + v * kDeltaLanes;
        const DeltaLanes state = delta_load(at) * decay + delta[v] * key[k + i];
        delta_store(state, at);
        sums[v][i] += state * query[k + i];
      }
    }
  }
  for (size_t v = 0; v < kDeltaVectors; ++v) read[v] = delta_total(sums[v]);
}

void run_delta_rule(const DeltaRuleArgs& args) {
  alignas(64) float values[kDeltaValues] = {};
  for (size_t t = 0; t < args.tokens; ++t) {
    const float *query = args.query + t * args.stride, *key = args.key + t * args.stride;
    const float decay = args.decay[t * args.gate_stride], beta = args.beta[t * args.gate_stride];
    for (size_t i = 0; i < args.width; ++i) values[i] = args.value[t * args.stride + i];
    DeltaLanes read[kDeltaVectors], delta[kDeltaVectors];
    delta_read(args, key, read);
    for (size_t v = 0; v < kDeltaVectors; ++v)
      delta[v] = (delta_load(values + v * kDeltaLanes) - read[v] * decay) * beta;
    delta_write(args, key, query, decay, delta, read);
    for (size_t v = 0; v < kDeltaVectors; ++v) delta_store(read[v], values + v * kDeltaLanes);
    for (size_t i = 0; i < args.width; ++i) args.out[t * args.out_stride + i] = values[i];
  }
}

}  // namespace
}  // namespace quire
