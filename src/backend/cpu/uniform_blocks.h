#pragma once

#include <cstddef>
#include <cstdint>

#include "tensor/block_formats.h"

// Every quantized weight as the matrix kernels see it: int8 codes, and for each sub-block of 16 or 32 values a
// scale and perhaps a minimum, value = scale * code - minimum. What differs from the file's own codes:
//
// - Four-bit codes are moved to -8..7 and taken sixteen times, their scale a sixteenth. Then both halves of a
//   byte become codes by one instruction each (a shift, a mask), and the fixed part moves into the minimum.
// - The scale of a sub-block of a K-quant is multiplied out. It has 17 bits at most, so the product is exact.

namespace quire {

// Whether a format's codes are four-bit numbers that are moved and widened; the others stay as they are.
template <class Format>
inline constexpr bool kIsWidened = false;
template <>
inline constexpr bool kIsWidened<format::Q4_0> = true;
template <>
inline constexpr bool kIsWidened<format::Q4_1> = true;
template <>
inline constexpr bool kIsWidened<format::Q4_K> = true;
template <>
inline constexpr bool kIsWidened<format::Q2_K> = true;
template <>
inline constexpr bool kIsWidened<format::Q3_K> = true;

template <class Format>
concept In256 = Format::kValues == 256;

// What is subtracted from a widened code before it is taken sixteen times, so that it lies in -8..7.
template <class Format>
inline constexpr int kMoved = 0;
template <>
inline constexpr int kMoved<format::Q4_1> = 8;
template <>
inline constexpr int kMoved<format::Q4_K> = 8;

template <class Format>
struct UniformBlock {
  static constexpr size_t kValues = Format::kValues;
  static constexpr size_t kSub = 32;
  static constexpr bool kHasMin = Format::kHasOffset;
  static constexpr float kScaleShare = kIsWidened<Format> ? 1.0f / 16 : 1.0f;

  int8_t codes[kValues];
  float scales[1];
  float mins[1];

  void unpack(const uint8_t* block) {
    Codes32 raw;
    Format::unpack(block, raw);
    for (size_t i = 0; i < kValues; ++i) {
      codes[i] = kIsWidened<Format> ? int8_t((raw.codes[i] - kMoved<Format>)*16) : raw.codes[i];
    }
    scales[0] = raw.scale * kScaleShare;
    if constexpr (kHasMin) mins[0] = -(raw.offset + float(kMoved<Format>) * raw.scale);
  }
};

template <In256 Format>
struct UniformBlock<Format> {
  static constexpr size_t kValues = Format::kValues;
  static constexpr size_t kSub = Format::kSubValues;
  static constexpr size_t kSubs = kValues / kSub;
  static constexpr bool kHasMin = Format::kHasMin;
  static constexpr float kScaleShare = kIsWidened<Format> ? 1.0f / 16 : 1.0f;

  int8_t codes[kValues];
  float scales[kSubs];
  float mins[kSubs];

  void unpack(const uint8_t* block) {
    Codes256 raw;
    Format::unpack(block, raw);
    for (size_t i = 0; i < kValues; ++i) {
      codes[i] = kIsWidened<Format> ? int8_t((raw.codes[i] - kMoved<Format>)*16) : raw.codes[i];
    }
    for (size_t j = 0; j < kSubs; ++j) {
      const float scale = raw.scale * float(raw.sub_scales[j]);
      scales[j] = scale * kScaleShare;
      if constexpr (kHasMin) mins[j] = raw.min_scale * float(raw.sub_mins[j]) - float(kMoved<Format>) * scale;
    }
  }
};

// The matrix kernels never reset the integer sum inside a group of activations that share a scale: it holds the
// prefix sums P_b over the sub-blocks, and the sum over b of d_b * (P_b - P_{b-1}) is that of (d_b - d_{b+1}) * P_b,
// with 0 after the last d. The integer sum starts at the bits of kMagic, so that it reads as the float kMagic + P_b
// without a conversion (|P_b| < 2^22 for 256 values), and the float sum starts at -kMagic * d_0: the offset telescopes
// away.
inline constexpr float kMagic = 12582912.0f;  // 1.5 * 2^23
inline constexpr int32_t kMagicBits = 0x4B400000;

}  // namespace quire
