#pragma once

#include <arm_neon.h>

#include "backend/cpu/i8mm/pair_panels.h"
#include "backend/cpu/neon/panel_reader.h"

// Columns of panels of pairs as floats, for outliers. Only for files that are compiled for NEON with i8mm.

namespace quire {
namespace {

template <class Format>
struct PairColumns {
  using Packed = PairBlock<Format>;
  using Read = Reader<Format>;
  struct Scales {
    PerRow scale, min;
  };

  // The eight columns that a column is of.
  static ALWAYS_INLINE const uint8_t* eight_at(const uint8_t* panel, size_t column) {
    return block_at<Packed>(panel, column) + Packed::kStart +
           column % Packed::kValues / 8 * Packed::kEightBytes;
  }

  static ALWAYS_INLINE Scales scales(const uint8_t* panel, size_t column) {
    const uint8_t* block = block_at<Packed>(panel, column);
    const size_t sub = column % Packed::kValues / Packed::kSub;
    Scales scales = {};
    // Signed nibbles are taken as they are, not sixteen times: so is the whole scale.
    scales.scale =
        Packed::kHasSubScales ? Read::scales(block, column % Packed::kValues) : Read::whole_scales(block);
    if constexpr (Packed::Uniform::kHasMin) {
      const uint8_t* at = block + Packed::sub_min_at(0, sub);
      int8_t all[16];
      for (size_t r = 0; r < 16; ++r) all[r] = int8_t(at[Packed::kSubs * r]);
      scales.min = times(PerRow::load_f16(block + Packed::kSecond), PerRow::from(vld1q_s8(all)));
    }
    return scales;
  }

  static ALWAYS_INLINE float32x4_t weight(int32x4_t code, const Scales& scales, size_t i) {
    const float32x4_t number = vcvtq_f32_s32(code);
    if constexpr (Packed::Uniform::kHasMin)
      return vfmaq_f32(vnegq_f32(scales.min.v[i]), number, scales.scale.v[i]);
    return vmulq_f32(number, scales.scale.v[i]);
  }

  // Bytes of two columns of eight rows, one column after the other.
  static ALWAYS_INLINE uint8x16_t two_columns(const uint8_t* rows, size_t one, size_t other) {
    static constexpr uint8_t kRows[16] = {0, 8, 16, 24, 32, 40, 48, 56, 0, 8, 16, 24, 32, 40, 48, 56};
    const uint8x16x4_t all = {vld1q_u8(rows), vld1q_u8(rows + 16), vld1q_u8(rows + 32), vld1q_u8(rows + 48)};
    const uint8x16_t places = vcombine_u8(vdup_n_u8(uint8_t(one)), vdup_n_u8(uint8_t(other)));
    return vqtbl4q_u8(all, vaddq_u8(vld1q_u8(kRows), places));
  }

  // Half a panel's rows of a column.
  static ALWAYS_INLINE void put(int8x8_t codes, const Scales& scales, size_t half, float* out) {
    const int16x8_t wide = vmovl_s8(codes);
    vst1q_f32(out + 8 * half, weight(vmovl_s16(vget_low_s16(wide)), scales, 2 * half));
    vst1q_f32(out + 8 * half + 4, weight(vmovl_high_s16(wide), scales, 2 * half + 1));
  }

  // Two of eight columns.
  static ALWAYS_INLINE void read_two(const uint8_t* eight, size_t one, size_t other, const Scales& scales,
                                     float* first, float* second) {
    const uint8x16_t two = two_columns(eight, one, other);
    int8x16_t low, high;
    if constexpr (!Packed::kIsNibbles) {
      low = vreinterpretq_s8_u8(two);
      high = vreinterpretq_s8_u8(two_columns(eight + 64, one, other));
    } else if constexpr (Packed::kIsSigned) {
      low = vsubq_s8(vreinterpretq_s8_u8(vandq_u8(two, vdupq_n_u8(15))), vdupq_n_s8(8));
      high = vshrq_n_s8(vreinterpretq_s8_u8(two), 4);
    } else {
      low = vreinterpretq_s8_u8(vandq_u8(two, vdupq_n_u8(15)));
      high = vreinterpretq_s8_u8(vshrq_n_u8(two, 4));
    }
    put(vget_low_s8(low), scales, 0, first);
    put(vget_low_s8(high), scales, 1, first);
    if (second == first) return;
    put(vget_high_s8(low), scales, 0, second);
    put(vget_high_s8(high), scales, 1, second);
  }

  // The weights that the outliers of one token meet, in spans [begin, end). Returns where the next ones go.
  static float* read_one(const uint8_t* panel, size_t begin, size_t end, size_t group, const Q8Row& input,
                         float* out) {
    for (size_t span = begin; span < end; ++span) {
      const Outlier* outliers = input.outliers + span * most_outliers(group);
      for (size_t k = 0; k < input.outlier_counts[span]; ++k, out += kPanelRows) {
        const size_t column = span * kOutlierSpan + outliers[k].col;
        const uint8_t* eight = eight_at(panel, column);
        const Scales now = scales(panel, column);
        const int8x16_t codes = column_codes(eight, column % 8);
        put(vget_low_s8(codes), now, 0, out);
        put(vget_high_s8(codes), now, 1, out);
      }
    }
    return out;
  }

  // A column of eight: its codes by row.
  static ALWAYS_INLINE int8x16_t column_codes(const uint8_t* eight, size_t place) {
    const int64x2_t down = vdupq_n_s64(-8 * int64_t(place));
    const auto lowest = [&](const uint8_t* rows) {  // of each row
      uint64x2_t v[4];
      for (size_t i = 0; i < 4; ++i) v[i] = vshlq_u64(vreinterpretq_u64_u8(vld1q_u8(rows + 16 * i)), down);
      const uint32x4_t a = vuzp1q_u32(vreinterpretq_u32_u64(v[0]), vreinterpretq_u32_u64(v[1]));
      const uint32x4_t b = vuzp1q_u32(vreinterpretq_u32_u64(v[2]), vreinterpretq_u32_u64(v[3]));
      return vmovn_u16(vuzp1q_u16(vreinterpretq_u16_u32(a), vreinterpretq_u16_u32(b)));
    };
    const uint8x8_t low = lowest(eight);
    if constexpr (!Packed::kIsNibbles) {
      return vreinterpretq_s8_u8(vcombine_u8(low, lowest(eight + 64)));
    } else if constexpr (Packed::kIsSigned) {
      const int8x8_t lower = vsub_s8(vreinterpret_s8_u8(vand_u8(low, vdup_n_u8(15))), vdup_n_s8(8));
      return vcombine_s8(lower, vshr_n_s8(vreinterpret_s8_u8(low), 4));
    } else {
      return vreinterpretq_s8_u8(vcombine_u8(vand_u8(low, vdup_n_u8(15)), vshr_n_u8(low, 4)));
    }
  }

  // OutlierKernels::read
  static void read(const uint8_t* panel, size_t first, const uint32_t* cols, size_t count, float* weights) {
    Scales now = {};
    size_t sub_end = 0;
    for (size_t k = 0; k < count;) {
      const size_t column = first + cols[k];
      if (column >= sub_end) {
        now = scales(panel, column);
        sub_end = column / Packed::kSub * Packed::kSub + Packed::kSub;
      }
      const uint8_t* eight = eight_at(panel, column);
      const bool is_pair = k + 1 < count && (first + cols[k + 1]) / 8 == column / 8;
      const uint32_t other = cols[k + (is_pair ? 1 : 0)];
      read_two(eight, column % 8, (first + other) % 8, now, weights + kPanelRows * cols[k],
               weights + kPanelRows * other);
      k += is_pair ? 2 : 1;
    }
  }
};

// Adds to the products of one token what its outliers come to.
inline void add_outliers_of_one(const Q8Row& input, size_t spans, size_t group, const float* weights,
                                float* product) {
  float32x4_t sums[kVectors];
  for (size_t i = 0; i < kVectors; ++i) sums[i] = vld1q_f32(product + 4 * i);
  for (size_t span = 0; span < spans; ++span) {
    const Outlier* outliers = input.outliers + span * most_outliers(group);
    for (size_t k = 0; k < input.outlier_counts[span]; ++k, weights += kPanelRows) {
      for (size_t i = 0; i < kVectors; ++i)
        sums[i] = vfmaq_n_f32(sums[i], vld1q_f32(weights + 4 * i), outliers[k].value);
    }
  }
  for (size_t i = 0; i < kVectors; ++i) vst1q_f32(product + 4 * i, sums[i]);
}

template <class Format>
inline constexpr OutlierKernels kPairOutlierKernels = {PairColumns<Format>::read,
                                                       add_outlier_columns<PerRow>};

}  // namespace
}  // namespace quire
