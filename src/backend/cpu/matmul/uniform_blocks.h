#pragma once

#include <cstddef>
#include <cstdint>

#include "backend/cpu/matmul/weight_codes.h"

// Every quantized weight as the matrix kernels see it: int8 codes, and for each sub-block of 16 or 32 values a
// scale and perhaps a minimum, value = scale * code - minimum. In blocks of 256 both are whole numbers, times a float of the block each;
// in others (blocks of 32 are one sub-block) they are floats.
//
// What differs from the file's own codes: some are widened (weight_codes.h), and what they are moved by goes into the minimum.

namespace quire {

template <class Format>
struct UniformBlock {
  static constexpr size_t kValues = Format::kValues;
  static constexpr size_t kSub = 32;
  static constexpr bool kHasMin = quire::kHasMin<Format>;
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

template <HasSubFloats Format>
struct UniformBlock<Format> {
  static constexpr size_t kValues = Format::kValues;
  static constexpr size_t kSub = Format::kSubValues;
  static constexpr bool kHasMin = false;
  // The bits of a scale, read as those of an f16, are 2^-8 of it; codes are twice the float and more.
  static constexpr float kScaleShare = 128.0f / float(kWeightCodes<Format>.times);

  int8_t codes[kValues];
  float scales[kValues / kSub];
  float mins[1];

  void unpack(const uint8_t* block) {
    constexpr int kTimes = kWeightCodes<Format>.times;
    format::Codes64 raw;
    Format::unpack(block, raw);
    for (size_t i = 0; i < kValues; ++i) codes[i] = int8_t(raw.codes[i] * kTimes);
    for (size_t j = 0; j < kValues / kSub; ++j) scales[j] = raw.scales[j] / float(kTimes);
  }
};

template <In256 Format>
struct UniformBlock<Format> {
  static constexpr size_t kValues = Format::kValues;
  static constexpr size_t kSub = Format::kSubValues;
  static constexpr size_t kSubs = kValues / kSub;
  static constexpr bool kHasMin = quire::kHasMin<Format>;
  static constexpr float kScaleShare = kIsWidened<Format> ? 1.0f / 16 : kShareOf<Format>;

  int8_t codes[kValues];
  float scale, min_scale;
  int8_t sub_scales[kSubs], sub_mins[kSubs];

  void unpack(const uint8_t* block) {
    Codes256 raw;
    Format::unpack(block, raw);
    for (size_t i = 0; i < kValues; ++i) {
      codes[i] = kIsWidened<Format> ? int8_t(raw.codes[i] * 16) : raw.codes[i];
    }
    scale = raw.scale * kScaleShare;
    min_scale = raw.min_scale;
    for (size_t j = 0; j < kSubs; ++j) {
      sub_scales[j] = raw.sub_scales[j];
      sub_mins[j] = raw.sub_mins[j];
    }
  }
};

// The matrix kernels need not reset the integer sum inside a group of activations that share a scale: it holds the
// prefix sums P_b over the sub-blocks, and the sum over b of d_b * (P_b - P_{b-1}) is that of (d_b - d_{b+1}) * P_b,
// with 0 after the last d. Where scales are whole numbers, this is so exactly. Where they are floats, the integer sum
// starts at the bits of kMagic, so that it reads as the float kMagic + P_b without a conversion (|P_b| < 2^22 for 256
// values), and the float sum starts at -kMagic * d_0: the offset telescopes away.
inline constexpr float kMagic = 12582912.0f;  // 1.5 * 2^23
inline constexpr int32_t kMagicBits = 0x4B400000;

}  // namespace quire
