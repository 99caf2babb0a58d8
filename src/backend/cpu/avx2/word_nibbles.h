// Attention to q4 with products of unsigned and signed bytes. Included by files that are compiled for AVX2 or more, so
// nothing here may have a name that the linker sees.
#pragma once

#include <type_traits>

#include <immintrin.h>

#include "backend/cpu/attention/attend_nibbles.h"

namespace quire {
namespace {

// A vector is a pair of groups, one in each half. The half of a group that is not there is 0.
struct WordNibbles {
  // [queries][lower codes of both groups, upper codes of both groups]
  static void pack_queries(const int8_t* codes, std::byte* out) {
    for (size_t part = 0; part < 16; ++part) {
      const size_t lane = part / 4, upper = part / 2 % 2, group = part % 2;
      std::memcpy(out + part * 16, codes + lane * kPairCodes + group * kKvGroup + upper * 16, 16);
    }
  }

  static ALWAYS_INLINE __m256i load(const void* from) {
    return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(from));
  }
  template <bool whole>
  static ALWAYS_INLINE __m256i codes(const std::byte* at) {
    if constexpr (whole) return load(at);
    return _mm256_zextsi128_si256(_mm_loadu_si128(reinterpret_cast<const __m128i*>(at)));
  }
  static ALWAYS_INLINE __m256i lower(__m256i both) { return _mm256_and_si256(both, _mm256_set1_epi8(15)); }
  static ALWAYS_INLINE __m256i upper(__m256i both) { return lower(_mm256_srli_epi16(both, 4)); }

  // Of a row, each four times: what a code is multiplied with, and what is added.
  struct Scales {
    __m256 scale, least;
  };
  template <bool whole>
  static ALWAYS_INLINE Scales scales(const std::byte* at) {
    int64_t halves = 0;
    std::memcpy(&halves, at, whole ? 8 : 4);
    const __m256 twice = _mm256_cvtph_ps(_mm_set1_epi64x(halves));
    return {_mm256_permutevar_ps(twice, _mm256_setr_epi32(0, 0, 0, 0, 2, 2, 2, 2)),
            _mm256_permutevar_ps(twice, _mm256_setr_epi32(1, 1, 1, 1, 3, 3, 3, 3))};
  }

  template <class Isa>
  static ALWAYS_INLINE void score(const NibbleQueries& queries, const NibbleRows& rows, float* scores,
                                  size_t stride) {
    const __m128 steps = _mm_loadu_ps(queries.steps);
    const size_t whole_pairs = rows.dim / kPairCodes;
    for (size_t r = 0; r < 4; ++r) {
      __m256 parts = _mm256_setzero_ps();
      for (size_t pair = 0; pair < whole_pairs; ++pair)
        parts = add_score<true>(parts, queries, rows, r, pair);
      if (whole_pairs < rows.pairs()) parts = add_score<false>(parts, queries, rows, r, whole_pairs);
      const __m128 score = _mm_add_ps(_mm256_castps256_ps128(parts), _mm256_extractf128_ps(parts, 1));
      _mm_storeu_ps(scores + r * stride, _mm_mul_ps(score, steps));
    }
  }

  template <bool whole>
  static ALWAYS_INLINE __m256 add_score(__m256 parts, const NibbleQueries& queries, const NibbleRows& rows,
                                        size_t row, size_t pair) {
    const Scales by = scales<whole>(rows.scales(row, pair));
    const __m256i both = codes<whole>(rows.codes(row, pair));
    const __m256i sums = dot(lower(both), upper(both), queries.packed + pair * 4 * kPairCodes);
    parts = _mm256_fmadd_ps(_mm256_cvtepi32_ps(sums), by.scale, parts);
    return _mm256_fmadd_ps(_mm256_loadu_ps(queries.sums + pair * 8), by.least, parts);
  }

  // In each half the sums of four queries.
  static ALWAYS_INLINE __m256i dot(__m256i low, __m256i high, const std::byte* queries) {
    __m256i sums[4];
    for (size_t lane = 0; lane < 4; ++lane) {
      const __m256i first = load(queries + lane * 64), second = load(queries + lane * 64 + 32);
#if defined(__AVX512VNNI__) && defined(__AVX512VL__)
      sums[lane] = _mm256_dpbusd_epi32(_mm256_setzero_si256(), low, first);
      sums[lane] = _mm256_dpbusd_epi32(sums[lane], high, second);
    }
    return _mm256_hadd_epi32(_mm256_hadd_epi32(sums[0], sums[1]), _mm256_hadd_epi32(sums[2], sums[3]));
#else
      sums[lane] = _mm256_add_epi16(_mm256_maddubs_epi16(low, first), _mm256_maddubs_epi16(high, second));
    }
    // Half of a group fits 16 bits: 16 * 15 * 127.
    const __m256i halves =
        _mm256_hadd_epi16(_mm256_hadd_epi16(sums[0], sums[1]), _mm256_hadd_epi16(sums[2], sums[3]));
    return _mm256_madd_epi16(halves, _mm256_set1_epi16(1));
#endif
  }

  struct Seen {
    __m256 most, sum, base;
  };

  template <class Isa>
  static ALWAYS_INLINE void weigh(const NibbleShares& from, const NibbleRows& rows, size_t pair,
                                  NibbleWeights& out) {
    using Fetch = typename Isa::Fetch;
    const bool whole = rows.is_whole(pair), all_seen = from.begin == nullptr;
    const Seen seen = whole      ? all_seen ? weigh_rows<Fetch, true, true>(from, rows, pair, out.floats)
                                            : weigh_rows<Fetch, true, false>(from, rows, pair, out.floats)
                           : all_seen ? weigh_rows<Fetch, false, true>(from, rows, pair, out.floats)
                                 : weigh_rows<Fetch, false, false>(from, rows, pair, out.floats);
    const __m256 most = seen.most;
    const __m256 some = _mm256_cmp_ps(most, _mm256_set1_ps(kLeastScaled), _CMP_GT_OQ);
    const __m256 finite = _mm256_cmp_ps(most, _mm256_set1_ps(kInfinity), _CMP_LT_OQ);
    const __m256 steps = _mm256_and_ps(_mm256_div_ps(_mm256_set1_ps(kNibbleSteps), most), some);
    __m256 step = _mm256_and_ps(_mm256_div_ps(most, _mm256_set1_ps(kNibbleSteps)), some);
    step = _mm256_blendv_ps(_mm256_set1_ps(__builtin_nanf("")), step, finite);
    const __m256 total = _mm256_cvtepi32_ps(pack(steps, from.blocks, out));
    _mm256_storeu_ps(out.step[0], step);
    _mm256_storeu_ps(out.base[0], _mm256_fmadd_ps(_mm256_set1_ps(kMiddleCode),
                                                  _mm256_fnmadd_ps(total, step, seen.sum), seen.base));
  }

  template <class Fetch, bool whole, bool all_seen>
  static ALWAYS_INLINE Seen weigh_rows(const NibbleShares& shares, const NibbleRows& rows, size_t pair,
                                       float* out) {
    const NibbleShares from = shares;  // by value: what is stored might be any of it
    const size_t row_bytes = rows.row_bytes, ahead_bytes = from.ahead != 0 && pair == 0 ? row_bytes : 0;
    const std::byte *row = rows.bytes, *scale_at = rows.scales(0, pair);
    Seen seen{_mm256_setzero_ps(), _mm256_setzero_ps(), _mm256_setzero_ps()};
    const size_t count = 4 * from.blocks;
    for (size_t r = 0; r < count; ++r, row += row_bytes, scale_at += row_bytes, out += 8) {
      for (size_t i = 0; i < ahead_bytes; i += 64) fetch_line<Fetch>(row + from.ahead + i);
      const __m256 share =
          _mm256_broadcast_ps(reinterpret_cast<const __m128*>(from.shares + r * from.stride));
      Scales by = scales<whole>(scale_at);
      __m256 weight = _mm256_mul_ps(share, by.scale);
      if constexpr (!all_seen) {
        const __m256 shown = seen_in(from, r);
        weight = _mm256_and_ps(weight, shown);
        by.least = _mm256_and_ps(by.least, shown);
      }
      seen.most = _mm256_max_ps(weight, seen.most);  // the second, if there is one that is no number
      seen.sum = _mm256_add_ps(seen.sum, weight);
      seen.base = _mm256_fmadd_ps(share, by.least, seen.base);
      _mm256_storeu_ps(out, weight);
    }
    return seen;
  }

  static ALWAYS_INLINE __m256 seen_in(const NibbleShares& from, size_t row) {
    const auto both = [](const int32_t* four) {
      return _mm256_broadcastsi128_si256(_mm_loadu_si128(reinterpret_cast<const __m128i*>(four)));
    };
    const __m256i at = _mm256_set1_epi32(int32_t(row));
    const __m256i before = _mm256_cmpgt_epi32(both(from.begin), at),
                  inside = _mm256_cmpgt_epi32(both(from.end), at);
    return _mm256_castsi256_ps(_mm256_andnot_si256(before, inside));
  }

  // [blocks][queries][groups][rows, four times]; returns the sums of the weights.
  static ALWAYS_INLINE __m256i pack(__m256 steps, size_t blocks, const NibbleWeights& out) {
    const __m256i turned =
        _mm256_broadcastsi128_si256(_mm_setr_epi8(0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15));
    __m256i total = _mm256_setzero_si256();
    for (size_t b = 0; b < blocks; ++b) {
      const auto rounded = [&](size_t r) {
        return _mm256_cvtps_epi32(_mm256_mul_ps(_mm256_loadu_ps(out.floats + 32 * b + 8 * r), steps));
      };
      const __m256i bytes = _mm256_packs_epi16(_mm256_packs_epi32(rounded(0), rounded(1)),
                                               _mm256_packs_epi32(rounded(2), rounded(3)));
      const __m256i by_query = _mm256_shuffle_epi8(bytes, turned);
      const __m256i pairs = _mm256_maddubs_epi16(_mm256_set1_epi8(1), by_query);
      total = _mm256_add_epi32(total, _mm256_madd_epi16(pairs, _mm256_set1_epi16(1)));
      auto* at = reinterpret_cast<__m256i*>(out.packed + b * kExpandedBytes);
      _mm256_storeu_si256(at, _mm256_shuffle_epi32(by_query, 0x00));
      _mm256_storeu_si256(at + 1, _mm256_shuffle_epi32(by_query, 0x55));
      _mm256_storeu_si256(at + 2, _mm256_shuffle_epi32(by_query, 0xaa));
      _mm256_storeu_si256(at + 3, _mm256_shuffle_epi32(by_query, 0xff));
    }
    return total;
  }

  template <class Isa>
  static ALWAYS_INLINE void add(const NibbleWeights& weights, const NibbleRows& rows, size_t blocks,
                                size_t pair, size_t live, float* values, size_t width) {
    float* out = values + pair * kPairCodes;
    if (rows.is_whole(pair)) {
      add_quarters<true>(weights, rows.codes(0, pair), rows.row_bytes, blocks, live, out, width);
    } else {
      add_quarters<false>(weights, rows.codes(0, pair), rows.row_bytes, blocks, live, out, width);
    }
  }

  template <bool whole>
  static ALWAYS_INLINE void add_quarters(const NibbleWeights& weights, const std::byte* rows,
                                         size_t row_bytes, size_t blocks, size_t live, float* out,
                                         size_t width) {
    add_quarter<whole, 0>(weights, rows, row_bytes, blocks, live, out, width);
    add_quarter<whole, 1>(weights, rows, row_bytes, blocks, live, out + 4, width);
    add_quarter<whole, 2>(weights, rows, row_bytes, blocks, live, out + 8, width);
    add_quarter<whole, 3>(weights, rows, row_bytes, blocks, live, out + 12, width);
  }

  // Sums of one query: of lower and of upper codes.
  struct Sums {
    __m256i low = _mm256_setzero_si256(), high = low;
  };

  // Of four bytes of each group: four lower codes and, sixteen values on, four upper ones.
  template <bool whole, int quarter>
  static ALWAYS_INLINE void add_quarter(const NibbleWeights& weights, const std::byte* rows, size_t row_bytes,
                                        size_t blocks, size_t live, float* values, size_t width) {
    Sums a, b, c, d;
#if defined(__AVX512VNNI__) && defined(__AVX512VL__)
    sum_rows<whole, quarter>(weights.packed, rows, row_bytes, blocks, a, b, c, d);
#else
    const std::byte* packed = weights.packed;
    for (size_t left = blocks; left > 0;) {
      const size_t count = left < kRunBlocks ? left : kRunBlocks;
      Sums run[4];
      sum_rows<whole, quarter>(packed, rows, row_bytes, count, run[0], run[1], run[2], run[3]);
      widen(run[0], a);
      widen(run[1], b);
      widen(run[2], c);
      widen(run[3], d);
      left -= count;
      packed += count * kExpandedBytes;
      rows += 4 * count * row_bytes;
    }
#endif
    add_sums<whole>(weights, 0, a, values);
    if (live > 1) add_sums<whole>(weights, 1, b, values + width);
    if (live > 2) add_sums<whole>(weights, 2, c, values + 2 * width);
    if (live > 3) add_sums<whole>(weights, 3, d, values + 3 * width);
  }

  static ALWAYS_INLINE void widen(const Sums& run, Sums& sums) {
    const __m256i ones = _mm256_set1_epi16(1);
    sums.low = _mm256_add_epi32(sums.low, _mm256_madd_epi16(run.low, ones));
    sums.high = _mm256_add_epi32(sums.high, _mm256_madd_epi16(run.high, ones));
  }

  template <bool whole>
  static ALWAYS_INLINE void add_sums(const NibbleWeights& weights, size_t q, const Sums& sums, float* out) {
    for (size_t g = 0; g < (whole ? 2 : 1); ++g) {
      const __m128 step = _mm_broadcast_ss(&weights.step[g][q]), base = _mm_broadcast_ss(&weights.base[g][q]);
      const auto add = [&](__m256i both, float* at) {
        const __m128i sum = g == 0 ? _mm256_castsi256_si128(both) : _mm256_extracti128_si256(both, 1);
        const __m128 value = _mm_add_ps(_mm_loadu_ps(at), base);
        _mm_storeu_ps(at, _mm_fmadd_ps(_mm_cvtepi32_ps(sum), step, value));
      };
      add(sums.low, out + g * kKvGroup);
      add(sums.high, out + g * kKvGroup + 16);
    }
  }

  template <bool whole, int quarter>
  static ALWAYS_INLINE void sum_rows(const std::byte* weights, const std::byte* rows, size_t row_bytes,
                                     size_t blocks, Sums& a, Sums& b, Sums& c, Sums& d) {
#pragma GCC unroll 2
    for (size_t block = 0; block < blocks; ++block, rows += 4 * row_bytes, weights += kExpandedBytes) {
      const auto pairs = [&](size_t r) {
        const __m256i first = codes<whole>(rows + r * row_bytes),
                      second = codes<whole>(rows + (r + 1) * row_bytes);
        return quarter < 2 ? _mm256_unpacklo_epi8(first, second) : _mm256_unpackhi_epi8(first, second);
      };
      const __m256i ab = pairs(0), cd = pairs(2);
      const __m256i both = quarter % 2 == 0 ? _mm256_unpacklo_epi16(ab, cd) : _mm256_unpackhi_epi16(ab, cd);
      const __m256i low = lower(both), high = upper(both);
      const auto add = [&](Sums& sums, size_t q) {
        const __m256i four = load(weights + 32 * q);
        sums.low = add_products(sums.low, low, four);
        sums.high = add_products(sums.high, high, four);
      };
      add(a, 0);
      add(b, 1);
      add(c, 2);
      add(d, 3);
    }
  }

  // With sums of 32 bits where four products are added at once, of 16 where it is two.
  static ALWAYS_INLINE __m256i add_products(__m256i sum, __m256i a, __m256i b) {
#if defined(__AVX512VNNI__) && defined(__AVX512VL__)
    return _mm256_dpbusd_epi32(sum, a, b);
#else
    return _mm256_add_epi16(sum, _mm256_maddubs_epi16(a, b));
#endif
  }
};

}  // namespace
}  // namespace quire
