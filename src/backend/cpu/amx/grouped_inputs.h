#pragma once

#include <immintrin.h>

#include "backend/cpu/amx/grouped_matmul.h"
#include "backend/cpu/amx/transpose_words.h"

// Activations as tiles of grouped products want them (grouped_matmul.h), and each tile's outliers, listed by group. They do not depend on the type
// of the weights: products of the same activations share them. `Machine` is that of grouped_product.h, and only keeps what is made of this apart.

namespace quire {

template <class Machine, size_t kGroup>
struct GroupedInputs {
  static constexpr size_t kRowBytes = 64;

  static size_t tile_bytes(size_t cols) { return uses_at(cols) + outlier_spans(cols) * sizeof(GroupedUses); }
  // Where the uses of outliers are in a packed tile.
  static ALWAYS_INLINE size_t uses_at(size_t cols) {
    return grouped_steps(cols) * kGroupedStepBytes + (cols + kGroup - 1) / kGroup * kRowBytes;
  }

  static ALWAYS_INLINE size_t group_begin(const GroupedUses& uses, size_t g) {
    return g == 0 ? 0 : uses.ends[g - 1];
  }
  static ALWAYS_INLINE size_t group_end(const GroupedUses& uses, size_t g) { return uses.ends[g]; }

  static void pack(const PackInputArgs& args) {
    for (size_t c = args.col_begin; c < args.col_end; c += kGroupedStepCols) {
      const size_t left = args.cols - c;
      const __mmask64 live = left < kGroupedStepCols ? (__mmask64(1) << left) - 1 : ~__mmask64(0);
      const std::byte* row = args.rows + c;
      __m512i fours[kGroupedTileTokens];
#pragma GCC unroll 16
      for (size_t t = 0; t < kGroupedTileTokens; ++t, row += args.stride_bytes) {
        fours[t] = t < args.tokens ? _mm512_maskz_loadu_epi8(live, row) : _mm512_setzero_si512();
      }
      transpose_words(fours);
      std::byte* out = args.tile + c / kGroupedStepCols * kGroupedStepBytes;
#pragma GCC unroll 16
      for (size_t i = 0; i < 16; ++i) _mm512_store_si512(out + i * kRowBytes, fours[i]);
    }
    float* scales = reinterpret_cast<float*>(args.tile + grouped_steps(args.cols) * kGroupedStepBytes);
    for (size_t t = 0; t < kGroupedTileTokens; ++t) {
      const float* from = reinterpret_cast<const float*>(args.rows + t * args.stride_bytes + args.cols);
      for (size_t g = args.col_begin / kGroup; g < (args.col_end + kGroup - 1) / kGroup; ++g)
        scales[g * kGroupedTileTokens + t] = t < args.tokens ? from[g] : 0.0f;
    }
    GroupedUses* uses = reinterpret_cast<GroupedUses*>(args.tile + uses_at(args.cols));
    for (size_t span = (args.col_begin + kOutlierSpan - 1) / kOutlierSpan; span * kOutlierSpan < args.col_end;
         ++span)
      list_uses(args, span, uses[span]);
  }

 private:
  static void list_uses(const PackInputArgs& args, size_t span, GroupedUses& out) {
    const Outlier* next[kGroupedTileTokens];
    const Outlier* end[kGroupedTileTokens];
    for (size_t t = 0; t < args.tokens; ++t) {
      const Q8Row row(args.rows + t * args.stride_bytes, args.cols, kGroup);
      next[t] = row.outliers + span * most_outliers(kGroup);
      end[t] = next[t] + row.outlier_counts[span];
    }
    uint32_t count = 0;
    for (size_t g = 0; g < kOutlierSpan / kGroup; ++g) {
      for (bool is_more = true; is_more;) {
        is_more = false;
        for (size_t t = 0; t < args.tokens; ++t) {
          if (next[t] == end[t] || next[t]->col >= (g + 1) * kGroup) continue;
          out.uses[count++] = {uint16_t(t * kRowBytes), uint16_t(next[t]->col % kGroup * kRowBytes),
                               next[t]->value};
          ++next[t];
          is_more = true;
        }
      }
      out.ends[g] = count;
    }
  }
};

}  // namespace quire
