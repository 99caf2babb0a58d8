#pragma once

#include <cstring>

#include "backend/cpu/kernels.h"
#include "backend/cpu/matmul/uniform_blocks.h"

// Weights in panels of 16 rows for instruction sets that multiply four int8 by four and add: vectors hold four
// columns of four, eight or sixteen rows. A panel is a sequence of blocks of as many columns as the format's own; a
// block holds its scales by row, and then its codes in steps of 32 columns:
//
//   f16 scale[16], or u8 exponent[16] (mxfp4), or u8 e4m3[4][16] (nvfp4: of a sub-block; without a sign, the last one is 480)
//   f16 offset[16] (q4_1, q5_1), or f16 min_scale[16] (blocks of 256 with minimums)
//   i8 sub_scale[subs][16], i8 sub_min[subs / 2][16][2] (blocks of 256)
//   u8 codes[values / 32][kStepBytes]
//
// With g = column % 32 / 4, the code of a row and column is at [g][row][column % 4] (64 bytes for a g) in formats of
// eight bits. Those of fewer bits keep the low four bits of g and g + 4 in the two halves of a byte at [g % 4], and
// after these 256 bytes the fifth bits (bit g of the byte at [row][column % 4]) or the fifth and sixth (at [g / 4],
// two bits from 2 * (g % 4) on). The four bits are the code itself where UniformBlock widens it, an index where the
// format has a table, and otherwise the code moved to 0 and above.

namespace quire {

// Where things are in a packed block.
template <class Format>
struct PackedBlock {
  using Uniform = UniformBlock<Format>;
  static constexpr size_t kValues = Format::kValues;
  static constexpr size_t kSub = Uniform::kSub;
  static constexpr size_t kSubs = kValues / kSub;
  static constexpr Coding kCodes = kCoding<Format>;
  static constexpr WeightCodes::Scale kScale = kWeightCodes<Format>.scale;
  static constexpr bool kHasSubScales = kValues == 256;  // whole numbers
  static constexpr bool kHasSubFloats = HasSubFloats<Format>;

  static constexpr size_t kScaleBytes = kScale == WeightCodes::Scale::f16 ? 32 : 16;    // of sixteen rows
  static constexpr size_t kSecond = kHasSubFloats ? kSubs * kScaleBytes : kScaleBytes;  // offset or min_scale
  static constexpr size_t kSubScales = kSecond + (Uniform::kHasMin ? 32 : 0);
  static constexpr size_t kSubMins = kSubScales + (kHasSubScales ? 16 * kSubs : 0);
  static constexpr size_t kStart = kSubMins + (kHasSubScales && Uniform::kHasMin ? 16 * kSubs : 0);
  static constexpr size_t kStepBytes = kCodes == Coding::byte   ? 512
                                       : kCodes == Coding::six  ? 384
                                       : kCodes == Coding::five ? 320
                                                                : 256;
  static constexpr size_t kBytes = kStart + kValues / 32 * kStepBytes;

  // Where the floats of the sub-block are to which a column of the block belongs.
  static constexpr size_t float_scales_at(size_t column) {
    return kHasSubFloats ? column / kSub * kScaleBytes : 0;
  }
  // Where the minimum of a row's sub-block is.
  static constexpr size_t sub_min_at(size_t row, size_t sub) {
    return kSubMins + 32 * (sub / 2) + 2 * row + sub % 2;
  }
};

// Any layout of panels that is a sequence of blocks: that of a panel in which a column is, and in this block the step of 32. Always
// inlined: files for other instruction sets use these.
template <class Packed>
static inline __attribute__((always_inline)) const uint8_t* block_at(const uint8_t* panel, size_t column) {
  return panel + column / Packed::kValues * Packed::kBytes;
}
template <class Packed>
static inline __attribute__((always_inline)) const uint8_t* step_at(const uint8_t* panel, size_t column) {
  return block_at<Packed>(panel, column) + Packed::kStart +
         column % Packed::kValues / 32 * Packed::kStepBytes;
}

// Packing as above, the same for every instruction set that uses these panels.
template <class Format>
PanelFormat panel_format();

}  // namespace quire
