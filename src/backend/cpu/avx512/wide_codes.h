// Codes as numbers of 16 bits, in vectors of 32 of them, for tiles of queries. Included by files that are compiled for AVX-512, so
// nothing here may have a name that the linker sees.
#pragma once

#include "backend/cpu/avx2/word_codes.h"

namespace quire {
namespace {

struct WideCodes : WordCodes {
  static constexpr size_t kTileQueries = 8;  // whose values are summed together; and of scores the least
  static constexpr size_t kTileCodes = 32;

  // sums[row, query] of four rows with N queries.
  template <size_t N>
  static ALWAYS_INLINE void dot_tile(const std::byte* packed, const std::byte* rows, size_t row_bytes,
                                     size_t chunks, int32_t* sums) {
    constexpr size_t kVectors = N / 2, kRows = kVectors == 8 ? 2 : 4;  // two queries to a vector
    for (size_t r = 0; r < 4; r += kRows) {
      __m512i all[kRows][kVectors];
      for (auto& row : all) {
        for (__m512i& sum : row) sum = _mm512_setzero_si512();
      }
      for (size_t c = 0; c < chunks; ++c) {
        __m512i codes[kRows];
#pragma GCC unroll 4
        for (size_t i = 0; i < kRows; ++i) codes[i] = repeated(rows + (r + i) * row_bytes + c * kChunk);
#pragma GCC unroll 8
        for (size_t v = 0; v < kVectors; ++v) {
          const __m512i query =
              _mm512_loadu_si512(packed + (v / 2 * chunks + c) * kPackedBytes + v % 2 * sizeof(__m512i));
#pragma GCC unroll 4
          for (size_t i = 0; i < kRows; ++i) all[i][v] = add_products(all[i][v], codes[i], query);
        }
      }
      for (size_t i = 0; i < kRows; ++i) {
        for (size_t v = 0; v < kVectors; v += 4) {
          const __m512i four[4] = {all[i][v], all[i][v + 1], all[i][v + 2], all[i][v + 3]};
          _mm256_storeu_si256(reinterpret_cast<__m256i*>(sums + (r + i) * N + 2 * v), joined_wide(four));
        }
      }
    }
  }

  // sums[query, code] of 32 codes of 4 * blocks rows, under the weights of twice four queries.
  static ALWAYS_INLINE void sum_tile(const std::byte* const (&weights)[2], const std::byte* rows,
                                     size_t row_bytes, size_t blocks, int32_t* sums) {
    __m512i all[kTileQueries][2];
    for (auto& query : all) {
      for (__m512i& sum : query) sum = _mm512_setzero_si512();
    }
    for (size_t pair = 0; pair < 2 * blocks; ++pair, rows += 2 * row_bytes) {
      const __m256i a = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(rows));
      const __m256i b = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(rows + row_bytes));
      const __m512i values[2] = {_mm512_cvtepi8_epi16(_mm256_unpacklo_epi8(a, b)),
                                 _mm512_cvtepi8_epi16(_mm256_unpackhi_epi8(a, b))};
      const size_t at = pair / 2 * 32 + pair % 2 * 4;
#pragma GCC unroll 8
      for (size_t q = 0; q < kTileQueries; ++q) {
        int32_t both;
        std::memcpy(&both, weights[q / 4] + at + q % 4 * 8, sizeof(both));
        const __m512i two = _mm512_set1_epi32(both);
#pragma GCC unroll 2
        for (size_t i = 0; i < 2; ++i) all[q][i] = add_products(all[q][i], values[i], two);
      }
    }
    for (size_t q = 0; q < kTileQueries; ++q, sums += kTileCodes) {
      _mm512_storeu_si512(sums, _mm512_shuffle_i32x4(all[q][0], all[q][1], 0x44));
      _mm512_storeu_si512(sums + 16, _mm512_shuffle_i32x4(all[q][0], all[q][1], 0xee));
    }
  }

 private:
  // In words of the machine: GCC 12 copies every sum before it adds to it, and back.
  static ALWAYS_INLINE __m512i add_products(__m512i sum, __m512i a, __m512i b) {
    asm("vpdpwssd %2, %1, %0" : "+v"(sum) : "v"(a), "vm"(b));
    return sum;
  }

  static ALWAYS_INLINE __m512i repeated(const std::byte* codes) {
    const __m128i sixteen = _mm_loadu_si128(reinterpret_cast<const __m128i*>(codes));
    return _mm512_cvtepi8_epi16(_mm256_broadcastsi128_si256(sixteen));
  }

  // Of four vectors, each of two queries, the sums of the eight.
  static ALWAYS_INLINE __m256i joined_wide(const __m512i (&sums)[4]) {
    const __m512i ab = add_pairs(sums[0], sums[1]), cd = add_pairs(sums[2], sums[3]);
    const __m512i all = _mm512_add_epi32(_mm512_unpacklo_epi64(ab, cd), _mm512_unpackhi_epi64(ab, cd));
    const __m256i first = _mm512_castsi512_si256(all), second = _mm512_extracti64x4_epi64(all, 1);
    const __m128i even = _mm_add_epi32(_mm256_castsi256_si128(first), _mm256_extracti128_si256(first, 1));
    const __m128i odd = _mm_add_epi32(_mm256_castsi256_si128(second), _mm256_extracti128_si256(second, 1));
    return _mm256_setr_m128i(_mm_unpacklo_epi32(even, odd), _mm_unpackhi_epi32(even, odd));
  }
  // In every four lanes: a0 + a2, b0 + b2, a1 + a3, b1 + b3.
  static ALWAYS_INLINE __m512i add_pairs(__m512i a, __m512i b) {
    return _mm512_add_epi32(_mm512_unpacklo_epi32(a, b), _mm512_unpackhi_epi32(a, b));
  }
};

}  // namespace
}  // namespace quire
