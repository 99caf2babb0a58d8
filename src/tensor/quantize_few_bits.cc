// The formats of one or two bits with one scale for a block, and NVFP4.
#include <algorithm>
#include <cmath>
#include <functional>

#include "tensor/block_formats.h"
#include "tensor/quantize_blocks.h"
#include "tensor/quantize_search.h"

namespace quire::format {
namespace {

// Values that become 1 or -1 are those of the largest magnitude, and their mean is the scale: of so many, the squared error is less
// by sum^2 / count.
template <class Format>
void encode_ternary(const float* x, uint8_t* block) {
  float magnitudes[Format::kValues];
  for (size_t i = 0; i < Format::kValues; ++i) magnitudes[i] = std::fabs(x[i]);
  std::sort(magnitudes, magnitudes + Format::kValues, std::greater<>());
  float sum = 0.0f, best_gain = 0.0f, scale = 0.0f, least = INFINITY;
  for (size_t i = 0; i < Format::kValues; ++i) {
    sum += magnitudes[i];
    const float gain = sum * (sum / float(i + 1));
    if (gain > best_gain) {
      best_gain = gain;
      scale = sum / float(i + 1);
      least = magnitudes[i];
    }
  }
  int8_t codes[Format::kValues];
  for (size_t i = 0; i < Format::kValues; ++i)
    codes[i] = int8_t(std::fabs(x[i]) < least ? 0 : std::signbit(x[i]) ? -1 : 1);
  Format::pack(as_f16(scale), codes, block);
}

struct Q2Codes : WholeCodes<-1, 2> {
  static constexpr int kSteps = 9;
  static constexpr float kStep = 0.07f;
};

}  // namespace

void encode_tq1_0(const float* values, const float*, uint8_t* block) {
  encode_ternary<Tq1_0>(values, block);
}

void encode_tq2_0(const float* values, const float*, uint8_t* block) {
  encode_ternary<Tq2_0>(values, block);
}

void encode_q1_0(const float* values, const float*, uint8_t* block) {
  float sum = 0.0f;
  int8_t codes[Q1_0::kValues];
  for (size_t i = 0; i < Q1_0::kValues; ++i) {
    sum += std::fabs(values[i]);
    codes[i] = values[i] < 0.0f ? -1 : 1;
  }
  Q1_0::pack(as_f16(sum / float(Q1_0::kValues)), codes, block);
}

void encode_q2_0(const float* values, const float*, uint8_t* block) {
  float weights[Q2_0::kValues];
  std::fill_n(weights, Q2_0::kValues, 1.0f);
  const float scale = as_f16(fit_scale<Q2Codes, Q2_0::kValues>(values, weights));
  int8_t codes[Q2_0::kValues];
  write_codes<Q2Codes, Q2_0::kValues>(values, scale, 0.0f, codes);
  Q2_0::pack(scale, codes, block);
}

// The scale is one of those near the one that makes the largest magnitude 6.
void encode_nvfp4(const float* values, const float*, uint8_t* block) {
  constexpr size_t kSub = Nvfp4::kSubValues;
  constexpr int kLast = 0x7e, kTries = 4;
  for (size_t j = 0; j < Nvfp4::kValues / kSub; ++j) {
    const float* x = values + kSub * j;
    float peak = 0.0f;
    for (size_t i = 0; i < kSub; ++i) peak = std::max(peak, std::fabs(x[i]));
    int near = 0;
    while (near < kLast && 12.0f * Nvfp4::half_scale(uint8_t(near)) < peak) ++near;
    float best = INFINITY;
    for (int bits = std::max(near - kTries, 0); bits <= std::min(near + kTries, kLast); ++bits) {
      const float scale = Nvfp4::half_scale(uint8_t(bits)), inverse = inverse_or_zero(scale);
      uint8_t halves[kSub];
      float error = 0.0f;
      for (size_t i = 0; i < kSub; ++i) {
        const float magnitude = std::min(std::fabs(x[i]) * inverse, 12.0f);
        int half = 0;  // the nearest of 0, 1, 2, 3, 4, 6, 8, 12
        while (half < 7 && 2.0f * magnitude > float(Mxfp4::code(half) + Mxfp4::code(half + 1))) ++half;
        const float off = std::fabs(x[i]) - scale * float(Mxfp4::code(half));
        error += off * off;
        halves[i] = uint8_t(half | (std::signbit(x[i]) && half != 0 ? 8 : 0));
      }
      if (!(error < best)) continue;
      best = error;
      block[j] = uint8_t(bits);
      for (size_t i = 0; i < 8; ++i) block[4 + 8 * j + i] = uint8_t(halves[i] | halves[i + 8] << 4);
    }
  }
}

}  // namespace quire::format
