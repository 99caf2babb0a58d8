#pragma once

#include <arm_neon.h>

#include "backend/cpu/matmul/panel_scales.h"

// How packed panels become vectors of codes and scales. Each file of kernels is compiled for its own instruction set, so
// each has its own copy of all this.

namespace quire {
namespace {

constexpr size_t kVectors = kPanelRows / 4;  // of four rows

// A float per row of a panel.
struct PerRow {
  float32x4_t v[kVectors];

  static ALWAYS_INLINE PerRow load(const float* values) {
    PerRow rows;
    for (size_t i = 0; i < kVectors; ++i) rows.v[i] = vld1q_f32(values + 4 * i);
    return rows;
  }
  ALWAYS_INLINE void store(float* out) const {
    for (size_t i = 0; i < kVectors; ++i) vst1q_f32(out + 4 * i, v[i]);
  }
  ALWAYS_INLINE void add(const PerRow& rows, float times) {
    for (size_t i = 0; i < kVectors; ++i) v[i] = vfmaq_n_f32(v[i], rows.v[i], times);
  }

  static ALWAYS_INLINE PerRow load_f16(const uint8_t* bytes) {
    PerRow rows;
    for (size_t i = 0; i < kVectors; ++i) {
      rows.v[i] =
          vcvt_f32_f16(vreinterpret_f16_u16(vld1_u16(reinterpret_cast<const uint16_t*>(bytes + 8 * i))));
    }
    return rows;
  }

  static ALWAYS_INLINE PerRow from(int8x16_t all) {
    const int16x8_t low = vmovl_s8(vget_low_s8(all)), high = vmovl_s8(vget_high_s8(all));
    return {{vcvtq_f32_s32(vmovl_s16(vget_low_s16(low))), vcvtq_f32_s32(vmovl_s16(vget_high_s16(low))),
             vcvtq_f32_s32(vmovl_s16(vget_low_s16(high))), vcvtq_f32_s32(vmovl_s16(vget_high_s16(high)))}};
  }
  static ALWAYS_INLINE PerRow load_i8(const uint8_t* bytes) {
    return from(vreinterpretq_s8_u8(vld1q_u8(bytes)));
  }
  static ALWAYS_INLINE PerRow load_i8_of_pairs(const uint8_t* bytes, size_t which) {
    return from(vld2q_s8(reinterpret_cast<const int8_t*>(bytes)).val[which]);
  }

  static ALWAYS_INLINE PerRow load_e4m3(const uint8_t* bytes) {
    const uint8x16_t all = vld1q_u8(bytes);
    const uint16x8_t low = vshll_n_u8(vget_low_u8(all), 7), high = vshll_n_u8(vget_high_u8(all), 7);
    return {{vcvt_f32_f16(vreinterpret_f16_u16(vget_low_u16(low))),
             vcvt_f32_f16(vreinterpret_f16_u16(vget_high_u16(low))),
             vcvt_f32_f16(vreinterpret_f16_u16(vget_low_u16(high))),
             vcvt_f32_f16(vreinterpret_f16_u16(vget_high_u16(high)))}};
  }

  static ALWAYS_INLINE PerRow load_exponents(const uint8_t* bytes) {
    const uint8x16_t all = vld1q_u8(bytes);
    const uint16x8_t low = vmovl_u8(vget_low_u8(all)), high = vmovl_u8(vget_high_u8(all));
    const uint32x4_t parts[kVectors] = {vmovl_u16(vget_low_u16(low)), vmovl_u16(vget_high_u16(low)),
                                        vmovl_u16(vget_low_u16(high)), vmovl_u16(vget_high_u16(high))};
    PerRow rows;
    for (size_t i = 0; i < kVectors; ++i) {
      const uint32x4_t normal = vshlq_n_u32(vsubq_u32(parts[i], vdupq_n_u32(1)), 23);
      const uint32x4_t tiny = vshlq_u32(vdupq_n_u32(0x00200000u), vreinterpretq_s32_u32(parts[i]));
      const uint32x4_t is_tiny = vcltq_u32(parts[i], vdupq_n_u32(2));
      rows.v[i] = vreinterpretq_f32_u32(vbslq_u32(is_tiny, tiny, normal));
    }
    return rows;
  }
};

// To the left if positive.
template <int kBits>
ALWAYS_INLINE uint8x16_t shift(uint8x16_t bytes) {
  if constexpr (kBits > 0) return vshlq_n_u8(bytes, kBits);
  if constexpr (kBits < 0) return vshrq_n_u8(bytes, -kBits);
  return bytes;
}

// How a packed block is read.
template <class Format>
struct Reader : PanelScales<Format, PerRow> {
  using Packed = PackedBlock<Format>;

  // Whole numbers, in blocks of 256.
  static ALWAYS_INLINE int8x16_t sub_scales(const uint8_t* block, size_t sub) {
    return vreinterpretq_s8_u8(vld1q_u8(block + Packed::kSubScales + 16 * sub));
  }
  static ALWAYS_INLINE int8x16x2_t sub_mins(const uint8_t* block, size_t pair) {
    return vld2q_s8(reinterpret_cast<const int8_t*>(block + Packed::kSubMins + 32 * pair));
  }

  static ALWAYS_INLINE int8x16_t table() {
    if constexpr (Packed::kCodes == Coding::table) {
      int8_t codes[16];
      for (size_t i = 0; i < 16; ++i) codes[i] = kWeightCodes<Format>.code(i);
      return vld1q_s8(codes);
    } else {
      return vdupq_n_s8(0);
    }
  }

  // Columns 4 g to 4 g + 3 of a step of 32, rows 4 i to 4 i + 3.
  template <size_t g>
  static ALWAYS_INLINE int8x16_t codes(const uint8_t* step, size_t i, int8x16_t table) {
    if constexpr (Packed::kCodes == Coding::byte) {
      return vreinterpretq_s8_u8(vld1q_u8(step + g * 64 + 16 * i));
    } else {
      const uint8x16_t halves = vld1q_u8(step + g % 4 * 64 + 16 * i);
      if constexpr (Packed::kCodes == Coding::widened) {
        return vreinterpretq_s8_u8(g < 4 ? vshlq_n_u8(halves, 4) : vandq_u8(halves, vdupq_n_u8(0xf0)));
      }
      if constexpr (Packed::kCodes == Coding::four) {
        return vreinterpretq_s8_u8(g < 4 ? vandq_u8(halves, vdupq_n_u8(15)) : vshrq_n_u8(halves, 4));
      }
      if constexpr (Packed::kCodes == Coding::table) {
        return vqtbl1q_s8(table, g < 4 ? vandq_u8(halves, vdupq_n_u8(15)) : vshrq_n_u8(halves, 4));
      }
      // The low four bits, and above them bits of another byte, which bring garbage along.
      const uint8x16_t low = g < 4 ? halves : vshrq_n_u8(halves, 4);
      uint8x16_t high;
      if constexpr (Packed::kCodes == Coding::five) {
        high = shift<4 - int(g)>(vld1q_u8(step + 256 + 16 * i));
      } else {
        high = shift<4 - 2 * int(g % 4)>(vld1q_u8(step + 256 + g / 4 * 64 + 16 * i));
      }
      constexpr uint8_t kMask = Packed::kCodes == Coding::five ? 31 : 63;
      const uint8x16_t both = vandq_u8(vbslq_u8(vdupq_n_u8(15), low, high), vdupq_n_u8(kMask));
      if constexpr (kLowest<Format> == 0) return vreinterpretq_s8_u8(both);
      return vaddq_s8(vreinterpretq_s8_u8(both), vdupq_n_s8(kLowest<Format>));
    }
  }
};

template <class Format>
struct Columns {
  using Packed = PackedBlock<Format>;
  using Read = Reader<Format>;
  static constexpr size_t kMany = kOutlierSpan * 3 / 8;
  using Scales = ColumnScales<Format, PerRow>;

  static ALWAYS_INLINE float32x4_t weight(int32x4_t code, const Scales& scales, size_t i) {
    const float32x4_t number = vcvtq_f32_s32(code);
    if constexpr (Packed::Uniform::kHasMin)
      return vfmaq_f32(vnegq_f32(scales.min.v[i]), number, scales.scale.v[i]);
    return vmulq_f32(number, scales.scale.v[i]);
  }

  template <size_t g>
  static ALWAYS_INLINE void read(const uint8_t* step, size_t place, const Scales& scales, float* out) {
    const int8x16_t table = Read::table();
    const int32x4_t to_top = vdupq_n_s32(24 - 8 * int(place));
    for (size_t i = 0; i < kVectors; ++i) {
      const int32x4_t four = vreinterpretq_s32_s8(Read::template codes<g>(step, i, table));
      vst1q_f32(out + 4 * i, weight(vshrq_n_s32(vshlq_s32(four, to_top), 24), scales, i));
    }
  }

  template <size_t g>
  static ALWAYS_INLINE void read_four(const uint8_t* step, const Scales& scales, float* out) {
    const int8x16_t table = Read::table();
    for (size_t i = 0; i < kVectors; ++i, out += 4) {
      const int32x4_t four = vreinterpretq_s32_s8(Read::template codes<g>(step, i, table));
      vst1q_f32(out, weight(vshrq_n_s32(vshlq_n_s32(four, 24), 24), scales, i));
      vst1q_f32(out + kPanelRows, weight(vshrq_n_s32(vshlq_n_s32(four, 16), 24), scales, i));
      vst1q_f32(out + 2 * kPanelRows, weight(vshrq_n_s32(vshlq_n_s32(four, 8), 24), scales, i));
      vst1q_f32(out + 3 * kPanelRows, weight(vshrq_n_s32(four, 24), scales, i));
    }
  }
};

template <class Format>
inline constexpr OutlierKernels kOutlierKernels = {OutlierColumns<Columns<Format>>::read,
                                                   add_outlier_columns<PerRow>};

}  // namespace
}  // namespace quire
