#pragma once

#include "backend/cpu/kernels.h"
#include "backend/cpu/matmul/panels.h"

// Weights as int8 with one scale for a row and a group of 64, 128 or 256 columns, for instructions that multiply int8 over
// many columns at a time: the products of a whole group are added before anything is scaled. A weight is
//
//   scale of its row and group (bf16, rounded up) * code in -127..127.
//
// Formats of more than four bits, or with scales for sixteen columns, are rounded to such codes when they are packed. Others keep their
// indexes of four bits, and for each row and 32 columns how these become codes; a panel is opened to codes when it is multiplied:
//
//   table   code = (entry(index) * ratio + 2^14) >> 15     entry: what the index stands for in the format, times 2^kTableShift
//   affine  code = (index * ratio + offset) >> 8           in 16 bits, which wrap
//
// A panel has 16 rows. It is a sequence of blocks of 256 columns, of which the last may have fewer steps of 64:
//
//   bf16 scale[256 / group][16]
//   i16 sum[256 / group][16], of table formats: that of the codes
//   step[4]:  byte    i8 codes[16][64]
//             table   i16 ratio[16][2], indexes
//             affine  i16 ratio[16][2], i16 offset[16][2], indexes
//
// An offset has its highest bit turned over, so that codes are 128 more than they are, as `vpdpbusd` wants them. Ratios and offsets are by row, and those of columns 0 to 31 stand before those of 32 to 63. Indexes are u8 [8][64], a pair of
// rows after the other: that of the first row and of column c is in bits 2 to 5 of byte c; that of the second begins in bits 6
// and 7 and ends in bits 0 and 1 of the byte after, in a ring of eight. So a vector, and the same turned by four bits in each 64,
// have their indexes at the same place, where they are four times themselves: the offset in bytes of a pair of 16-bit codes.

namespace quire {

inline constexpr size_t kGroupedBlockCols = 256;
inline constexpr size_t kGroupedStepCols = 64;
inline constexpr size_t kGroupedStepBytes = kPanelRows * kGroupedStepCols;  // of codes

enum class GroupedCoding : uint8_t { byte, table, affine };

template <class Format>
inline constexpr GroupedCoding kGroupedCoding =
    kSubValues<Format> != 32 || In256<Format> || kWeightCodes<Format>.bits > 4 ? GroupedCoding::byte
    : kHasMin<Format>                                                          ? GroupedCoding::affine
                                                                               : GroupedCoding::table;

// Such that a ratio fits in 16 bits: the largest entry is below 256, so that it becomes 127 at most.
template <class Format>
inline constexpr int kTableShift = [] {
  constexpr WeightCodes kCodes = kWeightCodes<Format>;
  const int most = kCodes.highest > -kCodes.lowest ? kCodes.highest : -kCodes.lowest;
  int shift = 0;
  while (most << (shift + 1) < 256) ++shift;
  return shift;
}();

// What an index of a table format is multiplied as.
template <class Format>
constexpr int16_t grouped_entry(size_t index) {
  return int16_t(kWeightCodes<Format>.code(index) * (1 << kTableShift<Format>));
}

// Where things are in a packed block.
template <class Format, size_t kGroupCols>
struct GroupedBlock {
  static constexpr GroupedCoding kCoding = kGroupedCoding<Format>;
  static constexpr size_t kGroup = kGroupCols;
  static constexpr size_t kGroups = kGroupedBlockCols / kGroup;
  static constexpr size_t kGroupSteps = kGroup / kGroupedStepCols;
  static constexpr size_t kSums = kGroups * kPanelRows * sizeof(uint16_t);
  static constexpr bool kHasSums = kCoding == GroupedCoding::table;
  static constexpr size_t kStart = ((kHasSums ? 2 : 1) * kSums + 63) / 64 * 64;  // of the steps
  static constexpr size_t kOffsets = 64;  // in a step, after its ratios
  static constexpr size_t kIndexes = kCoding == GroupedCoding::affine ? 128 : 64;
  static constexpr size_t kStepBytes =
      kCoding == GroupedCoding::byte ? kGroupedStepBytes : kIndexes + kGroupedStepBytes / 2;
  static constexpr size_t kSteps = kGroupedBlockCols / kGroupedStepCols;
  static constexpr size_t kBytes = kStart + kSteps * kStepBytes;
};

// Always inlined: files for other instruction sets use these.
static inline __attribute__((always_inline)) size_t grouped_steps(size_t cols) {
  return (cols + kGroupedStepCols - 1) / kGroupedStepCols;
}

// A row's columns of one block, as plain code makes them.
template <class Format, size_t kGroup>
struct GroupedRowBlock {
  using Packed = GroupedBlock<Format, kGroup>;
  static constexpr size_t kSubs = kGroupedBlockCols / 32;

  uint16_t scales[Packed::kGroups];  // bf16; NaN where a weight is not finite
  int16_t ratios[kSubs], offsets[kSubs];
  uint8_t indexes[kGroupedBlockCols];
  int8_t codes[kGroupedBlockCols];

  // Columns [col, col + kGroupedBlockCols) of a row as the file has it, zeros after `cols`. REQUIRES: col is a multiple of
  // kGroupedBlockCols.
  void read(const uint8_t* row, size_t col, size_t cols);
};

template <class Format, size_t kGroup>
PanelFormat grouped_panel_format();

}  // namespace quire
