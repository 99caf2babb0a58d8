#pragma once

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstddef>
#include <cstdint>

#include "tensor/float16.h"
#include "tensor/lanes.h"

// The searches for scales that several formats share. Sums run in four fixed lanes, so that every machine
// gets the same bytes.

namespace quire::format {

// The nearest whole number, ties to even, in a form that needs no rounding instruction.
// REQUIRES: |value| < 2^22.
inline float round_small(float value) {
  return (value + 0x1.8p23f) - 0x1.8p23f;
}

// What a scale becomes by being stored.
inline float as_f16(float value) {
  return f16_to_f32(f32_to_f16(std::clamp(value, -65504.0f, 65504.0f)));
}

// 1 / value, or 0 where that is not a number to work with.
inline float inverse_or_zero(float value) {
  const float inverse = 1.0f / value;
  return value != 0.0f && std::isfinite(inverse) ? inverse : 0.0f;
}

inline float clamped(float value, float low, float high) {
  return value < low ? low : (value > high ? high : value);
}

// Codes kLow..kHigh in steps of one. Adding 1.5 * 2^23 leaves the rounded value (ties to even) at the bottom
// of the float's bits; as integers these keep their order for every float, so that they can be clamped.
template <int low, int high>
struct WholeCodes {
  static constexpr int kLow = low, kHigh = high;
  static F32x4 nearest(F32x4 values) {
    constexpr float kShift = 0x1.8p23f;
    constexpr int32_t kZero = std::bit_cast<int32_t>(kShift);
    constexpr I32x4 kLowest = {kZero + low, kZero + low, kZero + low, kZero + low};
    constexpr I32x4 kHighest = {kZero + high, kZero + high, kZero + high, kZero + high};
    I32x4 bits = std::bit_cast<I32x4>(values + kShift);
    bits = bits < kLowest ? kLowest : bits;
    bits = bits > kHighest ? kHighest : bits;
    return std::bit_cast<F32x4>(bits) - kShift;
  }
};

// What an error of each value weighs: as much as it matters, if that is known, and more where the value is large, which
// matters more to the products.
inline void weigh(const float* x, const float* importance, size_t count, float* weights) {
  float squares = 0.0f;
  for (size_t i = 0; i < count; ++i) squares += x[i] * x[i];
  const float rms = std::sqrt(squares / float(count));
  for (size_t i = 0; i < count; ++i) weights[i] = rms + std::fabs(x[i]);
  for (size_t i = 0; importance != nullptr && i < count; ++i) weights[i] *= importance[i];
}

struct LineSums {  // of w, w x, w c, w c c, w x c, w x x over values x, codes c, weights w
  float one, x, c, cc, xc, xx;
};

// The weighted squared error of c -> scale * c + offset.
inline float squared_error(const LineSums& s, float scale, float offset) {
  const float cross = 2.0f * (scale * (offset * s.c - s.xc) - offset * s.x);
  return s.xx + scale * scale * s.cc + offset * offset * s.one + cross;
}

// Sums with the codes that `inverse` and `offset` give: nearest((x - offset) * inverse).
template <class Codes, size_t kCount>
LineSums line_sums(const float* x, const float* w, float inverse, float offset) {
  F32x4 one = {}, sx = {}, sc = {}, scc = {}, sxc = {}, sxx = {};
  for (size_t i = 0; i < kCount; i += 4) {
    const F32x4 value = load4(x + i), weight = load4(w + i);
    const F32x4 code = Codes::nearest((value - offset) * inverse);
    const F32x4 wx = weight * value, wc = weight * code;
    one += weight;
    sx += wx;
    sc += wc;
    scc += wc * code;
    sxc += wx * code;
    sxx += wx * value;
  }
  return {sum4(one), sum4(sx), sum4(sc), sum4(scc), sum4(sxc), sum4(sxx)};
}

// The weighted squared error of the codes nearest under `scale` and `offset`.
template <class Codes, size_t kCount>
float coding_error(const float* x, const float* w, float scale, float offset) {
  const float inverse = inverse_or_zero(scale);
  F32x4 sum = {};
  for (size_t i = 0; i < kCount; i += 4) {
    const F32x4 value = load4(x + i);
    const F32x4 error = value - (scale * Codes::nearest((value - offset) * inverse) + offset);
    sum += load4(w + i) * error * error;
  }
  return sum4(sum);
}

// Those codes.
template <class Codes, size_t kCount>
void write_codes(const float* x, float scale, float offset, int8_t* out) {
  const float inverse = inverse_or_zero(scale);
  for (size_t i = 0; i < kCount; i += 4) {
    const F32x4 code = Codes::nearest((load4(x + i) - offset) * inverse);
    for (size_t k = 0; k < 4; ++k) out[i + k] = int8_t(code[k]);
  }
}

struct Line {
  float scale, offset;
};

// The scale for x ~ scale * code: candidates that bring the value of largest magnitude near either end of the
// codes, each followed by the least-squares scale for its codes.
template <class Codes, size_t kCount>
float fit_scale(const float* x, const float* w) {
  float peak = 0.0f;
  for (size_t i = 0; i < kCount; ++i) peak = std::fabs(x[i]) > std::fabs(peak) ? x[i] : peak;
  const float to_unit = inverse_or_zero(peak);
  if (to_unit == 0.0f) return 0.0f;
  float best = 0.0f;
  float best_gain = 0.0f;  // of squared error, against coding everything as zero
  for (int end : {Codes::kLow, Codes::kHigh}) {
    for (int step = -Codes::kSteps; step <= Codes::kSteps; ++step) {
      const float target = float(end) * (1.0f + Codes::kStep * float(step));
      const LineSums sums = line_sums<Codes, kCount>(x, w, target * to_unit, 0.0f);
      if (!(sums.cc > 0.0f)) continue;
      const float gain = sums.xc * sums.xc / sums.cc;
      if (gain > best_gain) {
        best_gain = gain;
        best = sums.xc / sums.cc;
      }
    }
  }
  return best;
}

enum class OffsetSign { any, not_positive };

// The line for x ~ scale * code + offset, codes from zero up: candidates of different step, each followed by
// the least-squares line for its codes.
template <class Codes, size_t kCount, OffsetSign kSign>
Line fit_line(const float* x, const float* w) {
  static_assert(Codes::kLow == 0);
  float low = x[0], high = x[0];
  for (size_t i = 1; i < kCount; ++i) {
    low = std::min(low, x[i]);
    high = std::max(high, x[i]);
  }
  if (kSign == OffsetSign::not_positive) low = std::min(low, 0.0f);
  const float to_unit = inverse_or_zero(high - low);
  if (to_unit == 0.0f) return {0.0f, low};
  Line best = {(high - low) / float(Codes::kHigh), low};
  float best_error = coding_error<Codes, kCount>(x, w, best.scale, best.offset);
  for (int step = -Codes::kSteps; step <= Codes::kSteps; ++step) {
    const float levels = float(Codes::kHigh) * (1.0f + Codes::kStep * float(step));
    const LineSums s = line_sums<Codes, kCount>(x, w, levels * to_unit, low);
    const float determinant = s.one * s.cc - s.c * s.c;
    if (!(determinant > 0.0f) || !std::isfinite(determinant)) continue;
    Line line = {(s.one * s.xc - s.x * s.c) / determinant, (s.x * s.cc - s.c * s.xc) / determinant};
    if (kSign == OffsetSign::not_positive && line.offset > 0.0f) line = {s.xc / s.cc, 0.0f};
    const float error = squared_error(s, line.scale, line.offset);
    if (error < best_error) {
      best_error = error;
      best = line;
    }
  }
  return best;
}

}  // namespace quire::format
