#pragma once

#include <cstring>

#include "backend/cpu/i8mm/i8mm_kernels.h"
#include "backend/cpu/i8mm/pair_reader.h"
#include "backend/cpu/matmul/stream_fetch.h"

// The product of a panel of pairs with up to four tokens: codes go from memory into the product. Only for pair_matmul.cc, which
// is compiled for it.

namespace quire {
namespace {

// ---- inputs --------------------------------------------------------------------------------------------------------

// The tokens' activations, made once for all panels.
struct DirectInputs {
  Q8Row rows[kMostDirect];
  // [cols / 8][pairs][2 tokens][8 columns]; one token alone, or the odd one, stands there twice
  int8_t* values;
  // signed nibbles: [cols / 32][tokens][4]: kMagicBits - 128 * the sum of a group's values so far
  int32_t* starts;
  // blocks with minimums: [cols / 256][tokens][2][8]: the lower six bits of sums32, and the rest
  int8_t* sums;
  // one token: what its outliers meet, [outliers][kPanelRows]
  float* weights;

  static size_t bytes(size_t cols, size_t tokens, size_t outliers) {
    return cols * (4 + tokens) + 64 + outliers * sizeof(float[kPanelRows]);
  }
};

inline void interleave_direct(const Q8Row* rows, size_t tokens, size_t cols, int8_t* out) {
  for (size_t c = 0; c < cols; c += 8) {
    for (size_t t = 0; t < tokens; t += 2, out += 16) {
      std::memcpy(out, rows[t].values + c, 8);
      std::memcpy(out + 8, rows[t + 1 < tokens ? t + 1 : t].values + c, 8);
    }
  }
}

template <size_t kGroup>
void sum_direct(const Q8Row* rows, size_t tokens, size_t cols, int32_t* starts) {
  for (size_t t = 0; t < tokens; ++t) {
    int32_t start = kMagicBits;
    for (size_t b = 0; b < cols / 32; ++b) {
      if (b % (kGroup / 32) == 0) start = kMagicBits;
      start -= 128 * rows[t].sums32[b];
      for (size_t i = 0; i < 4; ++i) starts[(b * tokens + t) * 4 + i] = start;
    }
  }
}

inline void split_sums(const Q8Row* rows, size_t tokens, size_t cols, int8_t* out) {
  for (size_t b = 0; b < cols / 256; ++b) {
    for (size_t t = 0; t < tokens; ++t, out += 16) {
      for (size_t j = 0; j < 8; ++j) {
        const int sum = rows[t].sums32[8 * b + j];
        out[j] = int8_t(sum & 63);
        out[8 + j] = int8_t(sum >> 6);
      }
    }
  }
}

// ---- integer sums --------------------------------------------------------------------------------------------------

// Those of eight rows with one token, or with pairs of tokens.
template <size_t kTokens>
struct PairSums {
  static constexpr size_t kPairs = (kTokens + 1) / 2;
  // one token: {row 0, row 0, row 1, row 1}, two halves of columns each; two: as `smmla` has them
  int32x4_t v[kPairs][4];

  // So that each row's sum begins with it.
  ALWAYS_INLINE void begin(int32_t start) {
    const int32x4_t all = vdupq_n_s32(start);
    const int32x4_t vector =
        kTokens == 1 && start != 0
            ? vreinterpretq_s32_u64(vandq_u64(vreinterpretq_u64_s32(all), vdupq_n_u64(0xffffffffu)))
            : all;
    for (size_t p = 0; p < kPairs; ++p) {
      for (size_t i = 0; i < 4; ++i) v[p][i] = vector;
    }
  }

  ALWAYS_INLINE void add(size_t i, int8x16_t codes, const int8x16_t (&values)[kPairs]) {
    for (size_t p = 0; p < kPairs; ++p) {
      v[p][i] = kTokens == 1 ? vdotq_s32(v[p][i], codes, values[p]) : vmmlaq_s32(v[p][i], codes, values[p]);
    }
  }
  ALWAYS_INLINE void add_unsigned(size_t i, uint8x16_t codes, const int8x16_t (&values)[kPairs]) {
    for (size_t p = 0; p < kPairs; ++p) {
      v[p][i] =
          kTokens == 1 ? vusdotq_s32(v[p][i], codes, values[p]) : vusmmlaq_s32(v[p][i], codes, values[p]);
    }
  }

  // Four rows of a token.
  ALWAYS_INLINE int32x4_t rows(size_t t, size_t half) const {
    const int32x4_t a = v[t / 2][2 * half], b = v[t / 2][2 * half + 1];
    if (kTokens == 1) return vpaddq_s32(a, b);
    return t % 2 == 0 ? vuzp1q_s32(a, b) : vuzp2q_s32(a, b);
  }
};

template <size_t kPairs>
ALWAYS_INLINE void load_values(const int8_t*& values, int8x16_t (&out)[kPairs]) {
  for (size_t p = 0; p < kPairs; ++p) out[p] = vld1q_s8(values + 16 * p);
  values += 16 * kPairs;
}

// kEights times eight columns.
template <class Format, size_t kTokens, size_t kEights>
ALWAYS_INLINE void add_nibbles(const uint8_t* codes, const int8_t*& values, PairSums<kTokens>& whole,
                               PairSums<kTokens>& lower) {
#pragma GCC unroll 4
  for (size_t c = 0; c < kEights; ++c, codes += 64) {
    int8x16_t tokens[PairSums<kTokens>::kPairs];
    load_values(values, tokens);
    fetch_ahead<FarFetch, 64>(codes);
    for (size_t i = 0; i < 4; ++i) {
      const uint8x16_t both = vld1q_u8(codes + 16 * i);
      if constexpr (PairBlock<Format>::kIsSigned) {
        whole.add(i, vreinterpretq_s8_u8(both), tokens);
      } else {
        whole.add_unsigned(i, both, tokens);
      }
      lower.add(i, vreinterpretq_s8_u8(vandq_u8(both, vdupq_n_u8(15))), tokens);
    }
  }
}

template <size_t kTokens, size_t kEights>
ALWAYS_INLINE void add_bytes(const uint8_t* codes, const int8_t*& values, PairSums<kTokens>& lower,
                             PairSums<kTokens>& upper) {
#pragma GCC unroll 4
  for (size_t c = 0; c < kEights; ++c, codes += 128) {
    int8x16_t tokens[PairSums<kTokens>::kPairs];
    load_values(values, tokens);
    fetch_ahead<FarFetch, 128>(codes);
    for (size_t i = 0; i < 4; ++i) lower.add(i, vreinterpretq_s8_u8(vld1q_u8(codes + 16 * i)), tokens);
    for (size_t i = 0; i < 4; ++i) upper.add(i, vreinterpretq_s8_u8(vld1q_u8(codes + 64 + 16 * i)), tokens);
  }
}

template <size_t kTokens>
ALWAYS_INLINE void load_sums(const float (*from)[kPanelRows], float32x4_t (&sums)[kTokens][kVectors]) {
  for (size_t t = 0; t < kTokens; ++t) {
    for (size_t i = 0; i < kVectors; ++i) sums[t][i] = vld1q_f32(from[t] + 4 * i);
  }
}

// ---- blocks of 32 --------------------------------------------------------------------------------------------------

// Columns [begin, cols), added to `out`. The arithmetic is that of neon/direct_product.h.
template <class Format, size_t kGroup, size_t kTokens>
void multiply_pairs(const uint8_t* panel, size_t begin, size_t cols, const DirectInputs& inputs,
                    float (*out)[kPanelRows]) {
  using Packed = PairBlock<Format>;
  using Read = Reader<Format>;
  float32x4_t sum[kTokens][kVectors];
  load_sums(out, sum);
  const int8_t* values = inputs.values + 2 * PairSums<kTokens>::kPairs * begin;
  const int32_t* starts = inputs.starts + begin / 32 * kTokens * 4;
  const uint8_t* block = panel + begin / 32 * Packed::kBytes;
  for (size_t first = begin; first < cols; first += kGroup) {
    PerRow scale = Read::whole_scales(block);
    float32x4_t scaled[kTokens][kVectors];
    for (size_t t = 0; t < kTokens; ++t) {
      for (size_t i = 0; i < kVectors; ++i) scaled[t][i] = vmulq_n_f32(scale.v[i], -kMagic);
    }
    PairSums<kTokens> one, other;  // nibbles: whole bytes and lower halves; bytes: lower rows and upper
    one.begin(kMagicBits);
    other.begin(Packed::kIsNibbles ? 0 : kMagicBits);
    const uint8_t* end = block + (cols - first < kGroup ? cols - first : kGroup) / 32 * Packed::kBytes;
    while (true) {
      if constexpr (Packed::kIsNibbles) {
        add_nibbles<Format, kTokens, 4>(block + Packed::kStart, values, one, other);
      } else {
        add_bytes<kTokens, 4>(block + Packed::kStart, values, one, other);
      }
      block += Packed::kBytes;
      const PerRow next = block < end ? Read::whole_scales(block) : PerRow{};
      float32x4_t difference[kVectors];
      for (size_t i = 0; i < kVectors; ++i) difference[i] = vsubq_f32(scale.v[i], next.v[i]);
      for (size_t t = 0; t < kTokens; ++t) {
        int32x4_t prefix[kVectors];
        for (size_t i = 0; i < 2; ++i) {
          if constexpr (Packed::kIsNibbles) {
            const int32x4_t low = other.rows(t, i);
            prefix[i] = vaddq_s32(vshlq_n_s32(low, 4), vld1q_s32(starts + 4 * t));
            prefix[2 + i] = vsubq_s32(one.rows(t, i), low);
          } else {
            prefix[i] = one.rows(t, i);
            prefix[2 + i] = other.rows(t, i);
          }
        }
        for (size_t i = 0; i < kVectors; ++i)
          scaled[t][i] = vfmaq_f32(scaled[t][i], vreinterpretq_f32_s32(prefix[i]), difference[i]);
      }
      starts += 4 * kTokens;
      if (block == end) break;
      scale = next;
    }
    for (size_t t = 0; t < kTokens; ++t) {
      const float factor = inputs.rows[t].scales[first / kGroup] * Packed::Uniform::kScaleShare;
      for (size_t i = 0; i < kVectors; ++i) sum[t][i] = vfmaq_n_f32(sum[t][i], scaled[t][i], factor);
    }
  }
  for (size_t t = 0; t < kTokens; ++t) {
    for (size_t i = 0; i < kVectors; ++i) vst1q_f32(out[t] + 4 * i, sum[t][i]);
  }
}

// ---- blocks of 256, whose sub-scales are whole numbers -------------------------------------------------------------

ALWAYS_INLINE void widen_scales(const uint8_t* scales, bool is_signed, int32x4_t (&out)[kVectors]) {
  if (is_signed) {
    const int8x16_t all = vreinterpretq_s8_u8(vld1q_u8(scales));
    const int16x8_t low = vmovl_s8(vget_low_s8(all)), high = vmovl_high_s8(all);
    out[0] = vmovl_s16(vget_low_s16(low));
    out[1] = vmovl_high_s16(low);
    out[2] = vmovl_s16(vget_low_s16(high));
    out[3] = vmovl_high_s16(high);
  } else {
    static constexpr uint32_t kPlaces[4][4] = {{0xffffff00u, 0xffffff01u, 0xffffff02u, 0xffffff03u},
                                               {0xffffff04u, 0xffffff05u, 0xffffff06u, 0xffffff07u},
                                               {0xffffff08u, 0xffffff09u, 0xffffff0au, 0xffffff0bu},
                                               {0xffffff0cu, 0xffffff0du, 0xffffff0eu, 0xffffff0fu}};
    const uint8x16_t all = vld1q_u8(scales);
    for (size_t i = 0; i < kVectors; ++i)
      out[i] = vreinterpretq_s32_u8(vqtbl1q_u8(all, vreinterpretq_u8_u32(vld1q_u32(kPlaces[i]))));
  }
}

// What the minimums of a block come to.
ALWAYS_INLINE void add_pair_mins(const uint8_t* mins, const int8_t* sums, int32x4_t (&total)[kVectors]) {
  const int8x16_t parts = vld1q_s8(sums);
  for (size_t i = 0; i < kVectors; ++i) {
    const int32x4_t zero = vdupq_n_s32(0);
    const int32x4_t a = vmmlaq_s32(zero, vreinterpretq_s8_u8(vld1q_u8(mins + 32 * i)), parts);
    const int32x4_t b = vmmlaq_s32(zero, vreinterpretq_s8_u8(vld1q_u8(mins + 32 * i + 16)), parts);
    total[i] = vaddq_s32(vuzp1q_s32(a, b), vshlq_n_s32(vuzp2q_s32(a, b), 6));
  }
}

template <In256 Format, size_t kGroup, size_t kTokens>
void multiply_pairs(const uint8_t* panel, size_t begin, size_t cols, const DirectInputs& inputs,
                    float (*out)[kPanelRows]) {
  using Packed = PairBlock<Format>;
  using Read = Reader<Format>;
  static_assert(kGroup == 256);
  float32x4_t sum[kTokens][kVectors];
  load_sums(out, sum);
  const int8_t* values = inputs.values + 2 * PairSums<kTokens>::kPairs * begin;
  const int8_t* sums = inputs.sums + begin / 256 * kTokens * 16;
  panel += begin / 256 * Packed::kBytes;
  for (size_t b = begin / 256; b < cols / 256; ++b, panel += Packed::kBytes) {
    fetch_ahead<FarFetch, Packed::kStart>(panel);
    int32x4_t total[kTokens][kVectors] = {};
    const uint8_t* codes = panel + Packed::kStart;
#pragma GCC unroll 1
    for (size_t j = 0; j < Packed::kSubs; ++j, codes += Packed::kSub / 8 * Packed::kEightBytes) {
      PairSums<kTokens> one, other;
      one.begin(0);
      other.begin(0);
      if constexpr (Packed::kIsNibbles) {
        add_nibbles<Format, kTokens, Packed::kSub / 8>(codes, values, one, other);
      } else {
        add_bytes<kTokens, Packed::kSub / 8>(codes, values, one, other);
      }
      int32x4_t scale[kVectors];
      widen_scales(panel + Packed::kSubScales + 16 * j, !Packed::kIsNibbles, scale);
      for (size_t t = 0; t < kTokens; ++t) {
        for (size_t i = 0; i < 2; ++i) {
          int32x4_t low = other.rows(t, i), high = one.rows(t, i);
          if constexpr (Packed::kIsNibbles) {
            high = vsubq_s32(high, low);  // sixteen times what it is
          } else {
            low = one.rows(t, i);
            high = other.rows(t, i);
          }
          total[t][i] = vmlaq_s32(total[t][i], low, scale[i]);
          total[t][2 + i] = vmlaq_s32(total[t][2 + i], high, scale[2 + i]);
        }
      }
    }
    const PerRow scales = Read::block_scales(panel);
    for (size_t t = 0; t < kTokens; ++t, sums += 16) {
      int32x4_t min_total[kVectors] = {};
      PerRow min_scales = {};
      if constexpr (Packed::Uniform::kHasMin) {
        add_pair_mins(panel + Packed::kSubMins, sums, min_total);
        min_scales = PerRow::load_f16(panel + Packed::kSecond);
      }
      if constexpr (Packed::kIsNibbles) {
        total[t][2] = vshrq_n_s32(total[t][2], 4);
        total[t][3] = vshrq_n_s32(total[t][3], 4);
      }
      const float factor = inputs.rows[t].scales[b];
      for (size_t i = 0; i < kVectors; ++i) {
        float32x4_t scaled = vmulq_f32(vcvtq_f32_s32(total[t][i]), scales.v[i]);
        if constexpr (Packed::Uniform::kHasMin)
          scaled = vfmsq_f32(scaled, vcvtq_f32_s32(min_total[i]), min_scales.v[i]);
        sum[t][i] = vfmaq_n_f32(sum[t][i], scaled, factor);
      }
    }
  }
  for (size_t t = 0; t < kTokens; ++t) {
    for (size_t i = 0; i < kVectors; ++i) vst1q_f32(out[t] + 4 * i, sum[t][i]);
  }
}

}  // namespace
}  // namespace quire
