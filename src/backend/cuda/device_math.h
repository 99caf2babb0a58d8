#pragma once

#include <bit>
#include <cmath>
#include <cstdint>

// Arithmetic that is compiled for both sides, from the same operations in the same order: a kernel and its twin on the
// CPU have the same bits. Both are compiled without contraction, so that only what is written as fma is fused.

#if defined(__CUDACC__)
#define QUIRE_BOTH __host__ __device__ __forceinline__
#else
#define QUIRE_BOTH inline
#endif

namespace quire::cuda {

QUIRE_BOTH uint32_t bits_of(float value) {
#if defined(__CUDA_ARCH__)
  return __float_as_uint(value);
#else
  return std::bit_cast<uint32_t>(value);
#endif
}

QUIRE_BOTH float float_of(uint32_t bits) {
#if defined(__CUDA_ARCH__)
  return __uint_as_float(bits);
#else
  return std::bit_cast<float>(bits);
#endif
}

QUIRE_BOTH float infinity() {
  return float_of(0x7f800000u);
}

// a * b + c, rounded once.
QUIRE_BOTH float fused(float a, float b, float c) {
#if defined(__CUDA_ARCH__)
  return __fmaf_rn(a, b, c);
#else
  return std::fma(a, b, c);
#endif
}

QUIRE_BOTH float reciprocal(float x) {
#if defined(__CUDA_ARCH__)
  return __frcp_rn(x);
#else
  return 1.0f / x;
#endif
}

QUIRE_BOTH float larger(float a, float b) {  // of NaN and a number, the number
#if defined(__CUDA_ARCH__)
  return fmaxf(a, b);
#else
  return std::fmax(a, b);
#endif
}

QUIRE_BOTH float square_root(float x) {
#if defined(__CUDA_ARCH__)
  return __fsqrt_rn(x);
#else
  return std::sqrt(x);
#endif
}

// e^x as exp4 of the CPU backend on machines without a fused baseline: the same bits.
QUIRE_BOTH float exp_of(float x) {
  constexpr float kLog2E = 1.44269504088896341f, kLn2High = 0.693359375f, kLn2Low = -2.12194440e-4f;
  constexpr float kRound = 0x1.8p23f;  // adding it leaves the nearest integer at the bottom of the bits
  const float clamped = x < -87.0f ? -87.0f : x > 88.0f ? 88.0f : x;
  const float shifted = clamped * kLog2E + kRound;
  const float n = shifted - kRound;
  float r = n * -kLn2High + clamped;
  r = n * -kLn2Low + r;
  float p = 1.9875691500e-4f;
  p = p * r + 1.3981999507e-3f;
  p = p * r + 8.3334519073e-3f;
  p = p * r + 4.1665795894e-2f;
  p = p * r + 1.6666665459e-1f;
  p = p * r + 5.0000001201e-1f;
  p = (p * (r * r) + r) + 1.0f;
  const uint32_t exponent = (bits_of(shifted) - bits_of(kRound)) << 23;
  const float result = float_of(bits_of(p) + exponent);
  const float bounded = x < -87.0f ? 0.0f : x > 88.0f ? infinity() : result;
  return x == x ? bounded : x;
}

// ln(1 + e^x) as softplus_lanes of the CPU backend: the same bits.
QUIRE_BOTH float softplus_of(float x) {
  const float u = exp_of(x < 0 ? x : -x), s = u / (u + 2.0f), square = s * s;
  float sum = square * (1.0f / 17) + 1.0f / 15;
  sum = sum * square + 1.0f / 13;
  sum = sum * square + 1.0f / 11;
  sum = sum * square + 1.0f / 9;
  sum = sum * square + 1.0f / 7;
  sum = sum * square + 1.0f / 5;
  sum = sum * square + 1.0f / 3;
  const float above = x > 0 ? x : x == x ? 0.0f : x;
  return above + (s + s * (square * sum)) * 2.0f;
}

// 2^x to about one unit in the last place; 0 below -126. For x up to 127.
QUIRE_BOTH float exp2_polynomial(float x) {
  constexpr float kRound = 0x1.8p23f;
  const float clamped = x < -126.0f ? -126.0f : x;
  const float shifted = clamped + kRound;
  const float f = clamped - (shifted - kRound);  // -0.5 to 0.5
  float p = 0x1.5c08e6p-10f;
  p = fused(p, f, 0x1.3d0c52p-7f);
  p = fused(p, f, 0x1.c6b6e4p-5f);
  p = fused(p, f, 0x1.ebf918p-3f);
  p = fused(p, f, 0x1.62e428p-1f);
  p = fused(p, f, 1.0f);
  const float result = float_of(bits_of(p) + (bits_of(shifted) << 23));
  return x < -126.0f ? 0.0f : result;
}

// 2^x as attention takes it: by the device's own instruction, which has no twin, or with QUIRE_EXP2_POLYNOMIAL by the
// polynomial, which the CPU computes bit for bit.
QUIRE_BOTH float exp2_of(float x) {
#if defined(QUIRE_EXP2_POLYNOMIAL)
  return exp2_polynomial(x);
#elif defined(__CUDA_ARCH__)
  float result;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(result) : "f"(x));
  return result;
#else
  return std::exp2(x);
#endif
}

}  // namespace quire::cuda
