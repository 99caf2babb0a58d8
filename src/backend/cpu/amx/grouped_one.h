#pragma once

#include "backend/cpu/amx/grouped_outliers.h"

// One token and a panel of grouped weights, by vectors: opened rows stay in registers. `Machine` is that of grouped_product.h.

namespace quire {

template <class Machine, class Format, size_t kGroup>
class GroupedOneToken {
  using Codes = GroupedCodes<Machine, Format, kGroup>;
  using Outliers = GroupedOutliers<Machine, Format, kGroup>;
  using Packed = typename Codes::Packed;
  static constexpr size_t kGroupSteps = Packed::kGroupSteps, kSteps = Packed::kSteps;
  static constexpr size_t kSpanSteps = kOutlierSpan / kGroupedStepCols;

 public:
  // `vpdpbusd` takes one operand unsigned. Codes of a table are taken as they are, and values 128 more than they are, which the sums of
  // the codes take back; other codes are 128 more, which `corrections` takes back.
  static void multiply(const GroupedOne& one) {
    __m512 sum = _mm512_setzero_ps();
    const uint8_t* block = one.panel;
    const int8_t* values = one.values;
    const float* scales = one.scales;
    const int32_t* corrections = one.corrections;
    size_t outlier = 0;
    for (size_t first = 0; first < one.steps; first += kSteps, block += Packed::kBytes) {
      const size_t steps = one.steps - first < kSteps ? one.steps - first : kSteps;
      for (size_t g = 0, k = 0; k < steps; ++g, ++scales, ++corrections) {
        __m512i rows[kPanelRows];
#pragma GCC unroll 16
        for (size_t r = 0; r < kPanelRows; ++r) rows[r] = _mm512_setzero_si512();
        const size_t end = k + kGroupSteps < steps ? k + kGroupSteps : steps;
        for (; k < end; ++k, values += kGroupedStepCols) {
          Codes::prefetch_step(block, k);
          const uint8_t* step = block + Packed::kStart + k * Packed::kStepBytes;
          __m512i inputs = _mm512_loadu_si512(values);
          if constexpr (Packed::kHasSums) inputs = _mm512_xor_si512(inputs, _mm512_set1_epi8(char(0x80)));
#pragma GCC unroll 8
          for (size_t pair = 0; pair < kPanelRows / 2; ++pair) {
            __m512i even, odd;
            if constexpr (Packed::kHasSums) {
              Codes::template read_rows<0>(step, pair, even, odd);
              rows[2 * pair] = _mm512_dpbusd_epi32(rows[2 * pair], inputs, even);
              rows[2 * pair + 1] = _mm512_dpbusd_epi32(rows[2 * pair + 1], inputs, odd);
            } else {
              Codes::template read_rows<0x80>(step, pair, even, odd);
              rows[2 * pair] = _mm512_dpbusd_epi32(rows[2 * pair], even, inputs);
              rows[2 * pair + 1] = _mm512_dpbusd_epi32(rows[2 * pair + 1], odd, inputs);
            }
          }
        }
        __m512i total = totals_of(rows);
        if constexpr (Packed::kHasSums) {
          total = _mm512_sub_epi32(total, _mm512_slli_epi32(Codes::row_sums(block, g), 7));
        } else {
          total = _mm512_add_epi32(total, _mm512_set1_epi32(*corrections));
        }
        sum = _mm512_fmadd_ps(_mm512_cvtepi32_ps(total),
                              _mm512_mul_ps(_mm512_set1_ps(*scales), Codes::row_scales(block, g)), sum);
      }
      const bool ends_span = (first + kSteps) % kSpanSteps == 0 || first + kSteps >= one.steps;
      if (!ends_span) continue;
      for (const size_t end = one.outlier_ends[first / kSpanSteps]; outlier < end; ++outlier)
        Outliers::read_column(one.panel, one.outlier_cols[outlier], one.outlier_weights[outlier]);
    }
    for (size_t i = 0; i < outlier; ++i)
      sum = _mm512_fmadd_ps(_mm512_loadu_ps(one.outlier_weights[i]), _mm512_set1_ps(one.outlier_values[i]),
                            sum);
    _mm512_storeu_ps(one.out, sum);
  }

 private:
  // The lanes of each row added up.
  static ALWAYS_INLINE __m512i totals_of(__m512i (&r)[kPanelRows]) {
#pragma GCC unroll 8
    for (size_t i = 0; i < 8; ++i)
      r[i] = _mm512_add_epi32(_mm512_unpacklo_epi32(r[2 * i], r[2 * i + 1]),
                              _mm512_unpackhi_epi32(r[2 * i], r[2 * i + 1]));
#pragma GCC unroll 4
    for (size_t i = 0; i < 4; ++i)
      r[i] = _mm512_add_epi32(_mm512_unpacklo_epi64(r[2 * i], r[2 * i + 1]),
                              _mm512_unpackhi_epi64(r[2 * i], r[2 * i + 1]));
#pragma GCC unroll 2
    for (size_t i = 0; i < 2; ++i)
      r[i] = _mm512_add_epi32(_mm512_shuffle_i32x4(r[2 * i], r[2 * i + 1], 0x88),
                              _mm512_shuffle_i32x4(r[2 * i], r[2 * i + 1], 0xdd));
    return _mm512_add_epi32(_mm512_shuffle_i32x4(r[0], r[1], 0x88), _mm512_shuffle_i32x4(r[0], r[1], 0xdd));
  }
};

}  // namespace quire
