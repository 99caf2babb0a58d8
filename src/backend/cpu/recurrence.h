#pragma once

#include "backend/cpu/kernels.h"

// Recurrences and what goes with them, stated once for all instruction sets: plain vectors, each value's sums in one order, no
// operation contracted. Whoever includes it gets a copy of its own, compiled with its own flags.

namespace quire {
namespace {

#if defined(__AVX512F__)
inline constexpr size_t kStateBytes = 64;
#elif defined(__AVX__)
inline constexpr size_t kStateBytes = 32;
#else
inline constexpr size_t kStateBytes = 16;
#endif
typedef float StateLanes __attribute__((vector_size(kStateBytes)));
typedef int32_t StateInts __attribute__((vector_size(kStateBytes)));
inline constexpr size_t kStateLanes = kStateBytes / sizeof(float);
inline constexpr size_t kStateVectors =
    2;  // that are worked on at a time: with their sums, as many as registers hold
inline constexpr size_t kStateSums = 4;  // of every fourth key, so that none waits for the one before
static_assert(kStateValues % (kStateVectors * kStateLanes) == 0);

[[gnu::always_inline]] inline StateLanes state_load(const float* values) {
  StateLanes lanes;
  __builtin_memcpy(&lanes, values, sizeof(lanes));
  return lanes;
}

[[gnu::always_inline]] inline void state_store(const StateLanes& lanes, float* values) {
  __builtin_memcpy(values, &lanes, sizeof(lanes));
}

[[gnu::always_inline]] inline StateLanes all_lanes(float value) {
  return StateLanes{} + value;
}

// e^x to about one unit in the last place; 0 below -87. REQUIRES: x <= 88.
[[gnu::always_inline]] inline StateLanes exp_lanes(StateLanes x) {
  constexpr float kLog2E = 1.44269504088896341f, kLn2High = 0.693359375f, kLn2Low = -2.12194440e-4f;
  constexpr float kRound = 0x1.8p23f;  // adding it leaves the nearest integer at the bottom of the bits
  const StateLanes clamped = x < -87.0f ? all_lanes(-87.0f) : x;
  const StateLanes shifted = clamped * kLog2E + kRound;
  const StateLanes n = shifted - kRound;
  const StateLanes r = n * -kLn2Low + (n * -kLn2High + clamped);
  StateLanes p = r * 1.9875691500e-4f + 1.3981999507e-3f;
  p = p * r + 8.3334519073e-3f;
  p = p * r + 4.1665795894e-2f;
  p = p * r + 1.6666665459e-1f;
  p = p * r + 5.0000001201e-1f;
  p = (p * (r * r) + r) + 1.0f;
  const StateInts exponent = ((StateInts)shifted - (StateInts)all_lanes(kRound)) << 23;
  const StateLanes result = (StateLanes)((StateInts)p + exponent);
  const StateLanes bounded = x < -87.0f ? all_lanes(0) : result;
  return x == x ? bounded : x;
}

// ln(1 + e^x) = max(x, 0) + ln(1 + u) with u = e^-|x|, and ln(1 + u) = 2 artanh(u / (2 + u)), whose argument is at most a third.
[[gnu::always_inline]] inline StateLanes softplus_lanes(StateLanes x) {
  const StateLanes u = exp_lanes(x < 0.0f ? x : -x), s = u / (u + 2.0f), square = s * s;
  StateLanes sum = square * (1.0f / 17) + 1.0f / 15;
  sum = sum * square + 1.0f / 13;
  sum = sum * square + 1.0f / 11;
  sum = sum * square + 1.0f / 9;
  sum = sum * square + 1.0f / 7;
  sum = sum * square + 1.0f / 5;
  sum = sum * square + 1.0f / 3;
  const StateLanes above = x > 0.0f ? x : x == x ? all_lanes(0) : x;
  return above + (s + s * (square * sum)) * 2.0f;
}

// What is the same for all values of a token.
struct RecurrenceToken {
  const float *query, *key, *decay;
  float beta;
};

// The delta rule for some values of one token: what the state has for the key, decay * S^T k; then decay * S + k delta, and what the
// query reads there, in place of the values. Not inlined: unrolled in its caller, GCC 12 sees writes that there are not.
template <bool kDecayOfKeys>
[[gnu::noinline]] void delta_step(const RecurrenceToken& token, size_t keys, float* state, float* values) {
  StateLanes sums[kStateVectors][kStateSums] = {}, delta[kStateVectors];
  const float decay = token.decay[0];
  for (size_t k = 0; k < keys; k += kStateSums) {
    for (size_t i = 0; i < kStateSums; ++i) {
      for (size_t v = 0; v < kStateVectors; ++v) {
        const StateLanes before = state_load(state + (k + i) * kStateValues + v * kStateLanes);
        sums[v][i] += (kDecayOfKeys ? before * token.decay[k + i] : before) * token.key[k + i];
      }
    }
  }
  for (size_t v = 0; v < kStateVectors; ++v) {
    const StateLanes sum = (sums[v][0] + sums[v][1]) + (sums[v][2] + sums[v][3]);
    const StateLanes has = kDecayOfKeys ? sum : sum * decay;
    delta[v] = (state_load(values + v * kStateLanes) - has) * token.beta;
    for (size_t i = 0; i < kStateSums; ++i) sums[v][i] = StateLanes{};
  }
  for (size_t k = 0; k < keys; k += kStateSums) {
    for (size_t i = 0; i < kStateSums; ++i) {
      for (size_t v = 0; v < kStateVectors; ++v) {
        float* at = state + (k + i) * kStateValues + v * kStateLanes;
        const StateLanes next =
            state_load(at) * (kDecayOfKeys ? token.decay[k + i] : decay) + delta[v] * token.key[k + i];
        state_store(next, at);
        sums[v][i] += next * token.query[k + i];
      }
    }
  }
  for (size_t v = 0; v < kStateVectors; ++v)
    state_store((sums[v][0] + sums[v][1]) + (sums[v][2] + sums[v][3]), values + v * kStateLanes);
}

// Mamba-2: decay * S + k (beta v), and what the query reads there, in place of the values.
[[gnu::noinline]] void state_space_step(const RecurrenceToken& token, size_t keys, float* state,
                                        float* values) {
  StateLanes sums[kStateVectors][kStateSums] = {}, added[kStateVectors];
  const float decay = token.decay[0];
  for (size_t v = 0; v < kStateVectors; ++v) added[v] = state_load(values + v * kStateLanes) * token.beta;
  for (size_t k = 0; k < keys; k += kStateSums) {
    for (size_t i = 0; i < kStateSums; ++i) {
      for (size_t v = 0; v < kStateVectors; ++v) {
        float* at = state + (k + i) * kStateValues + v * kStateLanes;
        const StateLanes next = state_load(at) * decay + added[v] * token.key[k + i];
        state_store(next, at);
        sums[v][i] += next * token.query[k + i];
      }
    }
  }
  for (size_t v = 0; v < kStateVectors; ++v)
    state_store((sums[v][0] + sums[v][1]) + (sums[v][2] + sums[v][3]), values + v * kStateLanes);
}

// Mamba-1: every value of every key has a rate of its own, and every value a step: e^(rate step) * S + k (step v).
[[gnu::noinline]] void selective_step(const RecurrenceToken& token, size_t keys, const float* steps,
                                      float* state, float* values) {
  StateLanes sums[kStateVectors][kStateSums] = {}, added[kStateVectors], step[kStateVectors];
  for (size_t v = 0; v < kStateVectors; ++v) {
    step[v] = state_load(steps + v * kStateLanes);
    added[v] = state_load(values + v * kStateLanes) * step[v];
  }
  for (size_t k = 0; k < keys; k += kStateSums) {
    for (size_t i = 0; i < kStateSums; ++i) {
      for (size_t v = 0; v < kStateVectors; ++v) {
        const size_t at = (k + i) * kStateValues + v * kStateLanes;
        const StateLanes decay = exp_lanes(state_load(token.decay + at) * step[v]);
        const StateLanes next = state_load(state + at) * decay + added[v] * token.key[k + i];
        state_store(next, state + at);
        sums[v][i] += next * token.query[k + i];
      }
    }
  }
  for (size_t v = 0; v < kStateVectors; ++v)
    state_store((sums[v][0] + sums[v][1]) + (sums[v][2] + sums[v][3]), values + v * kStateLanes);
}

template <Recurrence kKind>
void run_recurrence(const RecurrenceArgs& args) {
  alignas(64) float values[kStateValues] = {}, steps[kStateValues] = {};
  for (size_t t = 0; t < args.tokens; ++t) {
    const float* beta = args.beta + t * args.beta_stride;
    const RecurrenceToken token{args.query + t * args.key_stride, args.key + t * args.key_stride,
                                args.decay + t * args.decay_stride, beta[0]};
    for (size_t i = 0; i < args.width; ++i) values[i] = args.value[t * args.value_stride + i];
    if constexpr (kKind == Recurrence::selective) {
      for (size_t i = 0; i < args.width; ++i) steps[i] = beta[i];
    }
    for (size_t v = 0; v < kStateValues; v += kStateVectors * kStateLanes) {
      if constexpr (kKind == Recurrence::delta)
        delta_step<false>(token, args.keys, args.state + v, values + v);
      if constexpr (kKind == Recurrence::delta_of_keys)
        delta_step<true>(token, args.keys, args.state + v, values + v);
      if constexpr (kKind == Recurrence::state_space)
        state_space_step(token, args.keys, args.state + v, values + v);
      if constexpr (kKind == Recurrence::selective) {
        const RecurrenceToken of_values{token.query, token.key, token.decay + v, 0};
        selective_step(of_values, args.keys, steps + v, args.state + v, values + v);
      }
    }
    for (size_t i = 0; i < args.width; ++i) args.out[t * args.out_stride + i] = values[i];
  }
}

template <size_t kSpan>
[[gnu::noinline]] void convolve_span(const ConvolutionArgs& args) {
  const size_t span = kSpan == 0 ? args.span : kSpan;
  size_t c = 0;
  for (; c + kStateLanes <= args.count; c += kStateLanes) {
    StateLanes sum = args.bias == nullptr ? StateLanes{} : state_load(args.bias + c);
    for (size_t i = 0; i < span; ++i)
      sum += state_load(args.rows[i] + c) * state_load(args.weights + i * args.count + c);
    state_store(sum, args.out + c);
  }
  for (; c < args.count; ++c) {
    float sum = args.bias == nullptr ? 0.0f : args.bias[c];
    for (size_t i = 0; i < span; ++i) sum += args.rows[i][c] * args.weights[i * args.count + c];
    args.out[c] = sum;
  }
}

void run_convolution(const ConvolutionArgs& args) {
  if (args.span == 3) return convolve_span<3>(args);
  if (args.span == 4) return convolve_span<4>(args);
  convolve_span<0>(args);
}

// Lanes by themselves, so what is left at the end is computed in a vector of its own.
void run_steps(const float* values, const float* bias, const float* rate, float* steps, float* decays,
               size_t count) {
  for (size_t i = 0; i < count; i += kStateLanes) {
    const size_t bytes = (count - i < kStateLanes ? count - i : kStateLanes) * sizeof(float);
    StateLanes value{}, offset{}, factor{};
    __builtin_memcpy(&value, values + i, bytes);
    __builtin_memcpy(&offset, bias + i, bytes);
    if (rate != nullptr) __builtin_memcpy(&factor, rate + i, bytes);
    const StateLanes step = softplus_lanes(value + offset);
    if (steps != nullptr) __builtin_memcpy(steps + i, &step, bytes);
    if (rate == nullptr) continue;
    const StateLanes decay = exp_lanes(step * factor);
    __builtin_memcpy(decays + i, &decay, bytes);
  }
}

void use_own_recurrences(CpuKernels& kernels) {
  kernels.recurrence[size_t(Recurrence::delta)] = run_recurrence<Recurrence::delta>;
  kernels.recurrence[size_t(Recurrence::delta_of_keys)] = run_recurrence<Recurrence::delta_of_keys>;
  kernels.recurrence[size_t(Recurrence::state_space)] = run_recurrence<Recurrence::state_space>;
  kernels.recurrence[size_t(Recurrence::selective)] = run_recurrence<Recurrence::selective>;
  kernels.convolve = run_convolution;
  kernels.steps = run_steps;
}

}  // namespace
}  // namespace quire
