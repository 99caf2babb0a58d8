#pragma once

#include "backend/cpu/matmul/panels.h"

// Panels in the order in which `smmla` takes them: vectors of two rows, eight columns of each. Scales and sub-scales are where
// PackedBlock has them; sub_min is [16 rows][8 subs]. Then come the codes, eight columns after the other:
//
//   nibbles   [8 rows][8 columns], 64 bytes: row r in the lower half of a byte and row r + 8, the same column, in the upper
//   bytes     [16 rows][8 columns], 128 bytes
//
// Both rows of a byte meet the same activation a. With v the byte and l its lower half, sum(v a) - sum(l a) is sixteen times the
// upper row's product: one mask and two products, where unpacking both halves would take two instructions and two products.
// For that a signed code is moved to 0 and above if its row is a lower one, and is a signed upper half of v if not.
//
// Q6_K is kept in bytes: putting codes of six bits together takes longer than reading eight from memory.

namespace quire {

// The types that are kept so.
template <class Format>
inline constexpr bool kHasPairs = kIsAnyOf<Format, format::Q4_0, format::Q4_K, format::Q6_K, format::Q8_0>;

template <class Format>
struct PairBlock : PackedBlock<Format> {
  using Base = PackedBlock<Format>;
  static constexpr bool kIsNibbles = kWeightCodes<Format>.bits == 4;
  static constexpr bool kIsSigned = kIsNibbles && kWeightCodes<Format>.lowest < 0;
  static constexpr size_t kEightBytes = kIsNibbles ? 64 : 128;
  static constexpr size_t kStepBytes = 4 * kEightBytes;
  static constexpr size_t kBytes = Base::kStart + Base::kValues / 32 * kStepBytes;

  static constexpr size_t sub_min_at(size_t row, size_t sub) {
    return Base::kSubMins + Base::kSubs * row + sub;
  }
};

// REQUIRES: kHasPairs<Format>.
template <class Format>
PanelFormat pair_format();

}  // namespace quire
