#pragma once

#include <bit>

#if defined(__aarch64__)
#include <arm_neon.h>
#endif

#include "tensor/lanes.h"

// Arithmetic on four floats at a time for what is not a matrix product. Every lane is computed as it would be alone.

namespace quire {

// a * b + c, rounded once where the architecture always has the instruction.
inline F32x4 multiply_add(F32x4 a, F32x4 b, F32x4 c) {
#if defined(__aarch64__)
  return F32x4(vfmaq_f32(float32x4_t(c), float32x4_t(a), float32x4_t(b)));
#else
  return a * b + c;
#endif
}

inline F32x4 all4(float value) {
  return F32x4{value, value, value, value};
}

inline F32x4 max4(F32x4 a, F32x4 b) {
#if defined(__aarch64__)
  return F32x4(vmaxq_f32(float32x4_t(a), float32x4_t(b)));
#else
  return a > b ? a : b;
#endif
}

inline float max_lane(F32x4 v) {
  const float low = v[0] > v[1] ? v[0] : v[1], high = v[2] > v[3] ? v[2] : v[3];
  return low > high ? low : high;
}

// The sums of four vectors' lanes, each (0 + 1) + (2 + 3).
inline F32x4 sum_each(F32x4 a, F32x4 b, F32x4 c, F32x4 d) {
#if defined(__aarch64__)
  const float32x4_t ab = vpaddq_f32(float32x4_t(a), float32x4_t(b));
  return F32x4(vpaddq_f32(ab, vpaddq_f32(float32x4_t(c), float32x4_t(d))));
#else
  const F32x4 ab = __builtin_shufflevector(a, b, 0, 2, 4, 6) + __builtin_shufflevector(a, b, 1, 3, 5, 7);
  const F32x4 cd = __builtin_shufflevector(c, d, 0, 2, 4, 6) + __builtin_shufflevector(c, d, 1, 3, 5, 7);
  return __builtin_shufflevector(ab, cd, 0, 2, 4, 6) + __builtin_shufflevector(ab, cd, 1, 3, 5, 7);
#endif
}

// e^x to about one unit in the last place; 0 below -87, infinity above 88, NaN stays NaN.
inline F32x4 exp4(F32x4 x) {
  constexpr float kLog2E = 1.44269504088896341f, kLn2High = 0.693359375f, kLn2Low = -2.12194440e-4f;
  constexpr float kRound = 0x1.8p23f;  // adding it leaves the nearest integer at the bottom of the bits
  const F32x4 clamped = x < all4(-87.0f) ? all4(-87.0f) : x > all4(88.0f) ? all4(88.0f) : x;
  const F32x4 shifted = multiply_add(clamped, all4(kLog2E), all4(kRound));
  const F32x4 n = shifted - all4(kRound);
  F32x4 r = multiply_add(n, all4(-kLn2High), clamped);
  r = multiply_add(n, all4(-kLn2Low), r);
  F32x4 p = all4(1.9875691500e-4f);
  p = multiply_add(p, r, all4(1.3981999507e-3f));
  p = multiply_add(p, r, all4(8.3334519073e-3f));
  p = multiply_add(p, r, all4(4.1665795894e-2f));
  p = multiply_add(p, r, all4(1.6666665459e-1f));
  p = multiply_add(p, r, all4(5.0000001201e-1f));
  p = multiply_add(p, r * r, r) + all4(1.0f);
  const I32x4 exponent = (std::bit_cast<I32x4>(shifted) - std::bit_cast<I32x4>(all4(kRound))) << 23;
  const F32x4 result = std::bit_cast<F32x4>(std::bit_cast<I32x4>(p) + exponent);
  const F32x4 bounded = x < all4(-87.0f) ? all4(0.0f) : x > all4(88.0f) ? all4(__builtin_inff()) : result;
  return x == x ? bounded : x;
}

inline void store4(F32x4 lanes, float* values) {
  std::memcpy(values, &lanes, sizeof(lanes));
}

}  // namespace quire
