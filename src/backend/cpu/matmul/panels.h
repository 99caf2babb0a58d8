#pragma once

#include <cstring>

#include "backend/cpu/kernels.h"
#include "backend/cpu/matmul/uniform_blocks.h"

// Weights in panels of 16 rows for instruction sets that multiply four int8 by four and add: vectors hold four
// columns of four, eight or sixteen rows. A panel is a sequence of blocks of as many columns as the format's own; a
// block holds its scales by row, and then its codes in steps of 32 columns:
//
//   f16 scale[16], or u8 exponent[16] (mxfp4)
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

enum class Coding : uint8_t { widened, table, four, five, six, byte };

template <class Format>
inline constexpr Coding kCoding =
    kIsWidened<Format>                                              ? Coding::widened
    : kIsAnyOf<Format, format::Iq4Nl, format::Iq4Xs, format::Mxfp4> ? Coding::table
    : kIsAnyOf<Format, format::Q2_K, format::Q4_K>                  ? Coding::four
    : kIsAnyOf<Format, format::Q5_0, format::Q5_1, format::Q5_K>    ? Coding::five
    : kIsAnyOf<Format, format::Q6_K>                                ? Coding::six
                                                                    : Coding::byte;

// What makes codes that are not widened start at 0.
template <class Format>
inline constexpr int kLowest = kIsAnyOf<Format, format::Q5_0>   ? -16
                               : kIsAnyOf<Format, format::Q6_K> ? -32
                                                                : 0;

// What the indexes of a table format stand for.
template <class Format>
struct CodeTable;
struct Iq4Table {
  static constexpr int8_t code(size_t index) { return format::kIq4Values[index]; }
};
template <>
struct CodeTable<format::Iq4Nl> : Iq4Table {};
template <>
struct CodeTable<format::Iq4Xs> : Iq4Table {};
template <>
struct CodeTable<format::Mxfp4> {
  static constexpr int8_t code(size_t index) { return format::Mxfp4::code(int(index)); }
};

// All of a table, each code moved up by `more`; for other formats, zeros.
struct MovedTable {
  uint8_t bytes[16];
};
template <class Format>
consteval MovedTable moved_table(int more) {
  MovedTable table = {};
  if constexpr (kCoding<Format> == Coding::table) {
    for (size_t i = 0; i < 16; ++i) table.bytes[i] = uint8_t(CodeTable<Format>::code(i) + more);
  }
  return table;
}

// Where things are in a packed block.
template <class Format>
struct PackedBlock {
  using Uniform = UniformBlock<Format>;
  static constexpr size_t kValues = Format::kValues;
  static constexpr size_t kSub = Uniform::kSub;
  static constexpr size_t kSubs = kValues / kSub;
  static constexpr Coding kCodes = kCoding<Format>;
  static constexpr bool kHasExponent = std::is_same_v<Format, format::Mxfp4>;
  static constexpr bool kHasSubScales = kValues == 256;

  static constexpr size_t kSecond = kHasExponent ? 16 : 32;  // offset or min_scale
  static constexpr size_t kSubScales = kSecond + (Uniform::kHasMin ? 32 : 0);
  static constexpr size_t kSubMins = kSubScales + (kHasSubScales ? 16 * kSubs : 0);
  static constexpr size_t kStart = kSubMins + (kHasSubScales && Uniform::kHasMin ? 16 * kSubs : 0);
  static constexpr size_t kStepBytes = kCodes == Coding::byte   ? 512
                                       : kCodes == Coding::six  ? 384
                                       : kCodes == Coding::five ? 320
                                                                : 256;
  static constexpr size_t kBytes = kStart + kValues / 32 * kStepBytes;
};

// Packing as above, the same for every instruction set that uses these panels.
template <class Format>
PanelFormat panel_format();

}  // namespace quire
