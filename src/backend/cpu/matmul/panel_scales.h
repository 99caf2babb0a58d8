#pragma once

#include "backend/cpu/matmul/panel_matmul.h"
#include "backend/cpu/matmul/panels.h"

// What the scales and minimums of a packed block come to: the scalar twin's float operations in its order, stated once
// for the instruction sets. `Rows` is an instruction set's own, a float for each row of a panel:
//
//   struct Rows {
//     Vector v[n];
//     static Rows load(const float*);
//     static Rows load_f16(const uint8_t*);
//     static Rows load_i8(const uint8_t*);
//     static Rows load_i8_of_pairs(const uint8_t*, size_t which);  // the first or second of each two
//     static Rows load_exponents(const uint8_t*);  // as format::Mxfp4::half_power
//     static Rows load_e4m3(const uint8_t*);  // 2^-8 of them: what they are as the bits 7 to 14 of an f16
//     void store(float*) const;
//     void add(const Rows& rows, float times);  // each rounded once
//   };
//
// It comes from an unnamed namespace, and so what is made of it here stays in the file it is compiled for.

#define ALWAYS_INLINE inline __attribute__((always_inline))

namespace quire {

template <class Rows>
ALWAYS_INLINE Rows times(Rows a, const Rows& b) {
  for (size_t i = 0; i < sizeof(a.v) / sizeof(a.v[0]); ++i) a.v[i] = a.v[i] * b.v[i];
  return a;
}

template <class Rows>
ALWAYS_INLINE Rows times(Rows a, float b) {
  for (size_t i = 0; i < sizeof(a.v) / sizeof(a.v[0]); ++i) a.v[i] = a.v[i] * b;
  return a;
}

template <class Rows>
ALWAYS_INLINE Rows plus(Rows a, const Rows& b) {
  for (size_t i = 0; i < sizeof(a.v) / sizeof(a.v[0]); ++i) a.v[i] = a.v[i] + b.v[i];
  return a;
}

template <class Rows>
ALWAYS_INLINE Rows minus(Rows a, const Rows& b) {
  for (size_t i = 0; i < sizeof(a.v) / sizeof(a.v[0]); ++i) a.v[i] = a.v[i] - b.v[i];
  return a;
}

template <class Rows>
ALWAYS_INLINE Rows negative(Rows a) {
  for (size_t i = 0; i < sizeof(a.v) / sizeof(a.v[0]); ++i) a.v[i] = -a.v[i];
  return a;
}

template <class Format, class Rows>
struct PanelScales {
  using Packed = PackedBlock<Format>;
  using Uniform = typename Packed::Uniform;
  static constexpr size_t kSub = Packed::kSub, kSubs = Packed::kSubs;

  // Of a block, or of the sub-block that they stand for, without the share of codes.
  static ALWAYS_INLINE Rows whole_scales(const uint8_t* scales) {
    if constexpr (Packed::kScale == WeightCodes::Scale::exponent) {
      return Rows::load_exponents(scales);
    } else if constexpr (Packed::kScale == WeightCodes::Scale::e4m3) {
      return Rows::load_e4m3(scales);
    } else {
      return Rows::load_f16(scales);
    }
  }
  // The same, of what begins at a column.
  static ALWAYS_INLINE Rows whole_scales_at(const uint8_t* panel, size_t column) {
    return whole_scales(block_at<Packed>(panel, column) + Packed::float_scales_at(column % Packed::kValues));
  }
  static ALWAYS_INLINE Rows block_scales(const uint8_t* block) {
    const Rows rows = whole_scales(block);
    if constexpr (Uniform::kScaleShare == 1.0f) return rows;
    return times(rows, Uniform::kScaleShare);
  }
  static ALWAYS_INLINE Rows block_min_scales(const uint8_t* block) requires In256<Format> {
    return Rows::load_f16(block + Packed::kSecond);
  }

  // Those of the block or sub-block that begins at a column, multiplied out.
  static ALWAYS_INLINE Rows scales(const uint8_t* panel, size_t column) {
    const uint8_t* block = block_at<Packed>(panel, column);
    if constexpr (!Packed::kHasSubScales) {
      return block_scales(block + Packed::float_scales_at(column % Packed::kValues));
    } else {
      return times(block_scales(block),
                   Rows::load_i8(block + Packed::kSubScales + kPanelRows * sub_of(column)));
    }
  }
  static ALWAYS_INLINE Rows mins(const uint8_t* panel, size_t column) {
    const uint8_t* block = block_at<Packed>(panel, column);
    if constexpr (!Packed::kHasSubScales) {
      return moved_mins(block, whole_scales(block));
    } else {
      const size_t sub = sub_of(column);
      return times(block_min_scales(block),
                   Rows::load_i8_of_pairs(block + Packed::sub_min_at(0, sub / 2 * 2), sub % 2));
    }
  }
  // `whole`: the block's whole scales.
  static ALWAYS_INLINE Rows moved_mins(const uint8_t* block, const Rows& whole) {
    return negative(plus(Rows::load_f16(block + Packed::kSecond), times(whole, float(kMoved<Format>))));
  }

  // All of them, for columns in groups that share a scale of the activations.
  static ALWAYS_INLINE void open(const uint8_t* panel, size_t cols, size_t group, const OpenPanel& out) {
    for (size_t c = 0; c < cols; c += kSub) {
      const Rows scale = scales(panel, c);
      if (c % group == 0) times(scale, -kMagic).store(out.starts + kPanelRows * (c / group));
      const size_t after = c + kSub;
      const bool is_last = after % group == 0 || after == cols;
      const Rows difference = is_last ? scale : minus(scale, scales(panel, after));
      difference.store(out.differences + kPanelRows * (c / kSub));
      if constexpr (Uniform::kHasMin) mins(panel, c).store(out.mins + kPanelRows * (c / 32));
    }
  }

  static ALWAYS_INLINE void open(const uint8_t* panel, size_t cols, size_t,
                                 const OpenPanel& out) requires In256<Format> {
    for (size_t b = 0; b < cols / Packed::kValues; ++b, panel += Packed::kBytes) {
      open_block(panel, b, out);
      const uint8_t* scales = panel + Packed::kSubScales;
      int32_t* factors = out.sub_factors + kPanelRows * kSubs * b;
      for (size_t i = 0; i < kPanelRows * kSubs; ++i) factors[i] = int8_t(scales[i]);
    }
  }
  // All but the sub-scales.
  static ALWAYS_INLINE void open_block(const uint8_t* block, size_t index,
                                       const OpenPanel& out) requires In256<Format> {
    block_scales(block).store(out.scales + kPanelRows * index);
    if constexpr (Uniform::kHasMin) {
      block_min_scales(block).store(out.min_scales + kPanelRows * index);
      const uint8_t* mins = block + Packed::kSubMins;
      int16_t* sub_mins = out.sub_mins + kPanelRows * kSubs * index;
      for (size_t i = 0; i < kPanelRows * kSubs; ++i) sub_mins[i] = int8_t(mins[i]);
    }
  }

 private:
  static ALWAYS_INLINE size_t sub_of(size_t column) { return column % Packed::kValues / kSub; }
};

// What a column's codes are multiplied with, and what is taken away.
template <class Format, class Rows>
struct ColumnScales {
  Rows scale, min;

  // Of the block or sub-block that begins at a column.
  static ALWAYS_INLINE ColumnScales at(const uint8_t* panel, size_t column) {
    using Of = PanelScales<Format, Rows>;
    ColumnScales scales = {Of::scales(panel, column), {}};
    if constexpr (kHasMin<Format>) scales.min = Of::mins(panel, column);
    return scales;
  }
};

// OutlierKernels::add
template <class Rows>
void add_outlier_columns(const OutlierUse* uses, size_t count, const float* weights,
                         float (*products)[kPanelRows]) {
  for (const OutlierUse* end = uses + count; uses != end;) {
    const uint32_t token = uses->token;
    Rows product = Rows::load(products[token]);
    do {
      product.add(Rows::load(weights + kPanelRows * uses->col), uses->value);
    } while (++uses != end && uses->token == token);
    product.store(products[token]);
  }
}

}  // namespace quire
