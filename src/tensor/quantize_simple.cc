#include <algorithm>
#include <cmath>

#include "tensor/block_formats.h"
#include "tensor/quantize_blocks.h"
#include "tensor/quantize_search.h"

namespace quire::format {
namespace {

// The value of largest magnitude becomes the lowest code, exactly; the rest is rounded half up.
template <class Format, int kHalfRange>
void encode_from_peak(const float* values, uint8_t* block) {
  float peak = 0.0f;
  for (size_t i = 0; i < 32; ++i) peak = std::fabs(values[i]) > std::fabs(peak) ? values[i] : peak;
  Codes32 out;
  out.scale = std::clamp(peak / float(-kHalfRange), -65504.0f, 65504.0f);
  const float inverse = inverse_or_zero(out.scale);
  for (size_t i = 0; i < 32; ++i) {
    const float shifted = values[i] * inverse + (float(kHalfRange) + 0.5f);
    out.codes[i] = int8_t(int(clamped(shifted, 0.0f, float(2 * kHalfRange - 1))) - kHalfRange);
  }
  Format::pack(out, block);
}

template <int half_range>
struct SignedCodes : WholeCodes<-half_range, half_range - 1> {
  static constexpr int kSteps = 9;
  static constexpr float kStep = 0.1f / float(half_range);
};

// The scale is searched for, as some errors matter more than others.
template <class Format, int kHalfRange>
void encode_by_importance(const float* values, const float* importance, uint8_t* block) {
  using Codes = SignedCodes<kHalfRange>;
  float weights[32];
  weigh(values, importance, 32, weights);
  Codes32 out;
  out.scale = as_f16(fit_scale<Codes, 32>(values, weights));
  write_codes<Codes, 32>(values, out.scale, 0.0f, out.codes);
  Format::pack(out, block);
}

template <int bits>
struct UnsignedCodes : WholeCodes<0, (1 << bits) - 1> {
  static constexpr int kSteps = 10;
  static constexpr float kStep = 0.2f / float(1 << bits);
};

template <class Format, class Codes>
void encode_line(const float* values, const float* importance, uint8_t* block) {
  float weights[32];
  std::fill_n(weights, 32, 1.0f);
  if (importance != nullptr) weigh(values, importance, 32, weights);
  const Line line = fit_line<Codes, 32, OffsetSign::any>(values, weights);
  Codes32 out;
  out.scale = as_f16(line.scale);
  out.offset = as_f16(line.offset);
  write_codes<Codes, 32>(values, out.scale, out.offset, out.codes);
  Format::pack(out, block);
}

// The e2m1 code of least distance to `value`, of which codes are twice the float; ties to the smaller.
uint8_t mxfp4_half(double value) {
  constexpr double kBetween[7] = {0.5, 1.5, 2.5, 3.5, 5.0, 7.0, 10.0};
  uint8_t half = 0;
  for (double between : kBetween) half = uint8_t(half + (std::fabs(value) > between ? 1 : 0));
  return uint8_t(half != 0 && value < 0.0 ? half | 8 : half);
}

}  // namespace

void encode_q4_0(const float* values, const float* importance, uint8_t* block) {
  if (importance != nullptr) return encode_by_importance<Q4_0, 8>(values, importance, block);
  encode_from_peak<Q4_0, 8>(values, block);
}

void encode_q5_0(const float* values, const float* importance, uint8_t* block) {
  if (importance != nullptr) return encode_by_importance<Q5_0, 16>(values, importance, block);
  encode_from_peak<Q5_0, 16>(values, block);
}

void encode_q8_0(const float* values, const float*, uint8_t* block) {
  float peak = 0.0f;
  for (size_t i = 0; i < 32; ++i) peak = std::max(peak, std::fabs(values[i]));
  Codes32 out;
  out.scale = std::min(peak / 127.0f, 65504.0f);
  const float inverse = inverse_or_zero(out.scale);
  for (size_t i = 0; i < 32; ++i) {
    out.codes[i] = int8_t(std::round(clamped(values[i] * inverse, -127.0f, 127.0f)));
  }
  Q8_0::pack(out, block);
}

void encode_q4_1(const float* values, const float* importance, uint8_t* block) {
  encode_line<Q4_1, UnsignedCodes<4>>(values, importance, block);
}

void encode_q5_1(const float* values, const float* importance, uint8_t* block) {
  encode_line<Q5_1, UnsignedCodes<5>>(values, importance, block);
}

void encode_mxfp4(const float* values, const float*, uint8_t* block) {
  float peak = 0.0f;
  for (size_t i = 0; i < 32; ++i) peak = std::max(peak, std::fabs(values[i]));
  std::fill_n(block, Mxfp4::kBytes, uint8_t(0));
  if (peak == 0.0f) return;
  // The largest float is 6 = 1.5 * 2^2. A peak between 6 and 8 may be cut to 6, or the next power taken.
  constexpr int kHighest = 252;  // above it the largest float would overflow
  const int lowest = std::clamp(std::ilogb(peak) - 2 + 127, 0, kHighest);
  double best_error = INFINITY;
  for (int exponent = lowest; exponent <= std::min(lowest + 1, kHighest); ++exponent) {
    const double scale = Mxfp4::half_power(uint8_t(exponent));
    uint8_t halves[32];
    double error = 0.0;
    for (size_t i = 0; i < 32; ++i) {
      halves[i] = mxfp4_half(double(values[i]) / scale);
      const double difference = double(values[i]) - scale * double(Mxfp4::code(halves[i]));
      error += difference * difference;
    }
    if (error >= best_error) continue;
    best_error = error;
    block[0] = uint8_t(exponent);
    for (size_t i = 0; i < 16; ++i) block[1 + i] = uint8_t(halves[i] | (halves[i + 16] << 4));
  }
}

}  // namespace quire::format
