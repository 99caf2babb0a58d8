#pragma once

#include "backend/cpu/panel_matmul.h"
#include "backend/cpu/panels.h"

// What the scales and minimums of a packed block come to: the scalar twin's float operations in its order, stated once
// for the instruction sets. `Rows` is an instruction set's own, a float for each row of a panel:
//
//   struct Rows {
//     Vector v[n];
//     static Rows load_f16(const uint8_t*);
//     static Rows load_i8(const uint8_t*);
//     static Rows load_exponents(const uint8_t*);  // as format::Mxfp4::half_power
//     void store(float*) const;
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
  static constexpr size_t kSub = Packed::kSub;

  // Those of the sub-block that begins at a column.
  static ALWAYS_INLINE Rows scales(const uint8_t* panel, size_t column) {
    const Rows rows = whole_scales(block_of(panel, column), sub_of(column));
    if constexpr (Uniform::kScaleShare == 1.0f) return rows;
    return times(rows, Uniform::kScaleShare);
  }

  static ALWAYS_INLINE Rows mins(const uint8_t* panel, size_t column) {
    const uint8_t* block = block_of(panel, column);
    const size_t sub = sub_of(column);
    const Rows moved = times(whole_scales(block, sub), float(kMoved<Format>));
    const Rows rows = Rows::load_f16(block + Packed::kSecond);
    if constexpr (Packed::kHasSubScales) {
      return minus(times(rows, Rows::load_i8(block + Packed::kSubMins + 16 * sub)), moved);
    } else {
      return negative(plus(rows, moved));
    }
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
      if constexpr (Uniform::kHasMin) mins(panel, c).store(out.mins + kPanelRows * (c / kSub));
    }
  }

 private:
  static ALWAYS_INLINE const uint8_t* block_of(const uint8_t* panel, size_t column) {
    return panel + column / Packed::kValues * Packed::kBytes;
  }
  static ALWAYS_INLINE size_t sub_of(size_t column) { return column % Packed::kValues / kSub; }

  // Without the share of widened codes.
  static ALWAYS_INLINE Rows whole_scales(const uint8_t* block, size_t sub) {
    if constexpr (Packed::kHasExponent) {
      return Rows::load_exponents(block);
    } else if constexpr (Packed::kHasSubScales) {
      return times(Rows::load_f16(block), Rows::load_i8(block + Packed::kSubScales + 16 * sub));
    } else {
      return Rows::load_f16(block);
    }
  }
};

}  // namespace quire
