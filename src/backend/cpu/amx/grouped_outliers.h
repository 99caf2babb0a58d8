#pragma once

#include "backend/cpu/amx/grouped_codes.h"
#include "backend/cpu/amx/grouped_inputs.h"

// What outliers add to products of grouped weights: each is multiplied with a column of weights as floats, which is read for it from the packed
// panel, row by row, or with all columns of its group where enough of them are wanted. `Machine` is that of grouped_product.h.

namespace quire {

template <class Machine, class Format, size_t kGroup>
class GroupedOutliers {
  using Codes = GroupedCodes<Machine, Format, kGroup>;
  using Inputs = GroupedInputs<Machine, kGroup>;
  using Packed = typename Codes::Packed;
  static constexpr GroupedCoding kCoding = Codes::kCoding;
  static constexpr size_t kRowBytes = Codes::kRowBytes;

 public:
  static void add(const uint8_t* panel, size_t cols, const std::byte* tile, size_t tiles,
                  float (*products)[kPanelRows]) {
    constexpr size_t kSpanGroups = kOutlierSpan / kGroup;
    constexpr size_t kFew = 12;  // uses that are worth no more than their own columns
    const size_t tile_bytes = Inputs::tile_bytes(cols), at = Inputs::uses_at(cols);
    alignas(64) float weights[kGroup][kPanelRows];
    for (size_t span = 0; span < outlier_spans(cols); ++span) {
      const std::byte* first = tile + at + span * sizeof(GroupedUses);
      const auto uses_of = [&](size_t t) __attribute__((always_inline)) {
        return reinterpret_cast<const GroupedUses*>(first + t * tile_bytes);
      };
      for (size_t g = 0; g < kSpanGroups; ++g) {
        size_t count = 0;
        for (size_t t = 0; t < tiles; ++t)
          count += Inputs::group_end(*uses_of(t), g) - Inputs::group_begin(*uses_of(t), g);
        if (count == 0) continue;
        const size_t column = span * kOutlierSpan + g * kGroup;
        if (count >= kFew) read_group(panel, column, cols, weights);
        for (size_t t = 0; t < tiles; ++t) {
          const GroupedUses& uses = *uses_of(t);
          const GroupedUse* use = uses.uses + Inputs::group_begin(uses, g);
          const GroupedUse* end = uses.uses + Inputs::group_end(uses, g);
          if (count < kFew) {
            for (const GroupedUse* each = use; each != end; ++each)
              read_column(panel, column + each->column / kRowBytes, weights[each->column / kRowBytes]);
          }
          add_uses(use, end, weights[0], products[t * kGroupedTileTokens]);
        }
      }
    }
  }

  // A column of a panel, sixteen rows.
  static ALWAYS_INLINE void read_column(const uint8_t* panel, size_t column, float* out) {
    const size_t s = column / kGroupedStepCols, c = column % kGroupedStepCols;
    const __m512 scale = scales_at(panel, s);
    const __m512i codes = column_codes(Codes::step_of(panel, s), c);
    _mm512_storeu_ps(out, _mm512_mul_ps(_mm512_cvtepi32_ps(codes), scale));
  }

 private:
  // Those of a step's rows.
  static ALWAYS_INLINE __m512 scales_at(const uint8_t* panel, size_t s) {
    return Codes::row_scales(Codes::block_of(panel, s), s % Packed::kSteps / Packed::kGroupSteps);
  }

  static ALWAYS_INLINE void add_uses(const GroupedUse* use, const GroupedUse* end, const float* weights,
                                     float* products) {
    for (; use != end; ++use) {
      float* product = products + use->token / sizeof(float);
      const __m512 column = _mm512_load_ps(weights + use->column / sizeof(float));
      _mm512_storeu_ps(product,
                       _mm512_fmadd_ps(column, _mm512_set1_ps(use->value), _mm512_loadu_ps(product)));
    }
  }

  // The weights of a group of columns.
  static void read_group(const uint8_t* panel, size_t column, size_t cols, float (*weights)[kPanelRows]) {
    const size_t last = grouped_steps(cols);
    for (size_t s = column / kGroupedStepCols; s < (column + kGroup) / kGroupedStepCols && s < last; ++s) {
      alignas(64) int8_t open[kGroupedStepBytes];
      read_step(Codes::codes_of(Codes::step_of(panel, s), open), scales_at(panel, s),
                weights[s * kGroupedStepCols - column]);
    }
  }

  // Column c of a step, for sixteen rows.
  static ALWAYS_INLINE __m512i column_codes(const uint8_t* step, size_t c) {
    if constexpr (!Codes::kOpens) {
      const __m512i rows =
          _mm512_setr_epi32(0, 64, 128, 192, 256, 320, 384, 448, 512, 576, 640, 704, 768, 832, 896, 960);
      const __m512i fours = _mm512_i32gather_epi32(rows, step + c / 4 * 4, 1);
      return _mm512_srai_epi32(_mm512_sll_epi32(fours, _mm_cvtsi32_si128(24 - 8 * int(c % 4))), 24);
    } else {
      const __m512i ratios = half_words(step, c), indexes = column_indexes(step + Packed::kIndexes, c);
      if constexpr (kCoding == GroupedCoding::table) {
        static constexpr WideEntries kEntries = wide_entries();
        const __m512i entries = _mm512_permutexvar_epi32(indexes, _mm512_load_si512(kEntries.of));
        const __m512i half = _mm512_set1_epi32(1 << 14);
        return _mm512_srai_epi32(_mm512_add_epi32(_mm512_mullo_epi32(entries, ratios), half), 15);
      } else {
        const __m512i offsets = half_words(step + Packed::kOffsets, c, 0x8000);
        return _mm512_srai_epi32(_mm512_add_epi32(_mm512_mullo_epi32(indexes, ratios), offsets), 8);
      }
    }
  }

  struct WideEntries {
    alignas(64) int32_t of[16];
  };
  static constexpr WideEntries wide_entries() {
    WideEntries all = {};
    if constexpr (kCoding == GroupedCoding::table) {
      for (size_t i = 0; i < 16; ++i) all.of[i] = grouped_entry<Format>(i);
    }
    return all;
  }

  // Of each row's two, that of column c.
  static ALWAYS_INLINE __m512i half_words(const uint8_t* pairs, size_t c, unsigned flip = 0) {
    const __m128i to_top = _mm_cvtsi32_si128(16 - 16 * int(c / 32));
    const __m512i words = _mm512_xor_si512(_mm512_load_si512(pairs), _mm512_set1_epi16(short(flip)));
    return _mm512_srai_epi32(_mm512_sll_epi32(words, to_top), 16);
  }

  static ALWAYS_INLINE __m512i column_indexes(const uint8_t* pairs, size_t c) {
    const size_t after = c / 8 * 8 + (c + 1) % 8;
    const __m256i here = pair_bytes(pairs, c), there = pair_bytes(pairs, after);
    const __m256i first = _mm256_and_si256(_mm256_srli_epi32(here, 2), _mm256_set1_epi32(15));
    const __m256i low = _mm256_and_si256(_mm256_srli_epi32(here, 6), _mm256_set1_epi32(3));
    const __m256i high = _mm256_and_si256(_mm256_slli_epi32(there, 2), _mm256_set1_epi32(12));
    const __m512i both = _mm512_inserti64x4(_mm512_castsi256_si512(first), _mm256_or_si256(low, high), 1);
    const __m512i by_row = _mm512_setr_epi32(0, 8, 1, 9, 2, 10, 3, 11, 4, 12, 5, 13, 6, 14, 7, 15);
    return _mm512_permutexvar_epi32(by_row, both);
  }
  // Byte c of each pair of rows, and others above it.
  static ALWAYS_INLINE __m256i pair_bytes(const uint8_t* pairs, size_t c) {
    const __m256i places = _mm256_setr_epi32(0, 64, 128, 192, 256, 320, 384, 448);
    const __m256i fours = _mm256_i32gather_epi32(reinterpret_cast<const int*>(pairs + c / 4 * 4), places, 1);
    return _mm256_srl_epi32(fours, _mm_cvtsi32_si128(8 * int(c % 4)));
  }

  // All 64 columns, fours of them transposed at a time. A code at the top of 32 bits is 2^24 times what it is.
  static ALWAYS_INLINE void read_step(const int8_t* tile, __m512 scale, float* out) {
    __m512i fours[16];
#pragma GCC unroll 16
    for (size_t r = 0; r < 16; ++r) fours[r] = _mm512_load_si512(tile + r * kRowBytes);
    transpose_words(fours);
    const __m512 share = _mm512_mul_ps(scale, _mm512_set1_ps(0x1p-24f));
#pragma GCC unroll 16
    for (size_t i = 0; i < 16; ++i, out += 4 * kPanelRows) {
#pragma GCC unroll 4
      for (int k = 0; k < 4; ++k) {
        const __m512i place = _mm512_set4_epi32(
            int(0x0c808080u + unsigned(k) * 0x01000000u), int(0x08808080u + unsigned(k) * 0x01000000u),
            int(0x04808080u + unsigned(k) * 0x01000000u), int(0x00808080u + unsigned(k) * 0x01000000u));
        const __m512i at_top = _mm512_shuffle_epi8(fours[i], place);
        _mm512_storeu_ps(out + k * int(kPanelRows), _mm512_mul_ps(_mm512_cvtepi32_ps(at_top), share));
      }
    }
  }
};

}  // namespace quire
