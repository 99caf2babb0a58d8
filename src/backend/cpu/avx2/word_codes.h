// Codes as numbers of 16 bits, whose products are added in pairs. Included by files that are compiled for AVX2 or more, so
// nothing here may have a name that the linker sees.
#pragma once

#include <immintrin.h>

#include "backend/cpu/attention/attend_codes.h"

namespace quire {
namespace {

struct WordCodes {
  static constexpr size_t kTileQueries = 0;

  static void pack_query(const int16_t* codes, size_t lane, std::byte* out) {
    std::memcpy(out + lane * 2 * kChunk, codes, 2 * kChunk);
  }

  static ALWAYS_INLINE void dot_rows(const std::byte* packed, const std::byte* rows, size_t row_bytes,
                                     size_t chunks, int32_t* sums) {
    for (size_t r = 0; r < 4; r += 2, rows += 2 * row_bytes, sums += 8) {
      const std::byte* query = packed;
      __m256i all[2][4];
      for (auto& row : all) {
        for (__m256i& sum : row) sum = _mm256_setzero_si256();
      }
#pragma GCC unroll 4
      for (size_t c = 0; c < chunks; ++c, query += kPackedBytes) {
        const __m256i first = _mm256_cvtepi8_epi16(codes(rows, c));
        const __m256i second = _mm256_cvtepi8_epi16(codes(rows + row_bytes, c));
        for (size_t lane = 0; lane < 4; ++lane) {
          const __m256i other =
              _mm256_loadu_si256(reinterpret_cast<const __m256i*>(query + lane * 2 * kChunk));
          all[0][lane] = add_products(all[0][lane], first, other);
          all[1][lane] = add_products(all[1][lane], second, other);
        }
      }
      for (size_t i = 0; i < 2; ++i)
        _mm_storeu_si128(reinterpret_cast<__m128i*>(sums + i * 4), joined(all[i]));
    }
  }

  static ALWAYS_INLINE __m128i joined(const __m256i (&sums)[4]) {
    const __m256i halves =
        _mm256_hadd_epi32(_mm256_hadd_epi32(sums[0], sums[1]), _mm256_hadd_epi32(sums[2], sums[3]));
    return _mm_add_epi32(_mm256_castsi256_si128(halves), _mm256_extracti128_si256(halves, 1));
  }

  // [queries][rows]
  static ALWAYS_INLINE void pack_weights(const Ints<4> (&rows)[4], size_t block, std::byte* out) {
    const __m128i even = _mm_packs_epi32(__m128i(rows[0]), __m128i(rows[2]));
    const __m128i odd = _mm_packs_epi32(__m128i(rows[1]), __m128i(rows[3]));
    const __m128i first = _mm_unpacklo_epi16(even, odd), second = _mm_unpackhi_epi16(even, odd);
    auto* at = reinterpret_cast<__m128i*>(out) + 2 * block;
    _mm_storeu_si128(at, _mm_unpacklo_epi32(first, second));
    _mm_storeu_si128(at + 1, _mm_unpackhi_epi32(first, second));
  }

  static ALWAYS_INLINE void sum_rows(const std::byte* weights, const std::byte* rows, size_t row_bytes,
                                     size_t blocks, size_t chunk, int32_t* sums) {
    __m256i all[4][2];
    for (auto& query : all) {
      for (__m256i& sum : query) sum = _mm256_setzero_si256();
    }
#pragma GCC unroll 2
    for (size_t block = 0; block < blocks; ++block, rows += 4 * row_bytes, weights += 32) {
      add_two(all, weights, rows, row_bytes, chunk);
      add_two(all, weights + 4, rows + 2 * row_bytes, row_bytes, chunk);
    }
    for (size_t lane = 0; lane < 4; ++lane) {
      for (size_t i = 0; i < 2; ++i)
        _mm256_storeu_si256(reinterpret_cast<__m256i*>(sums + lane * kChunk + 8 * i), all[lane][i]);
    }
  }

  static ALWAYS_INLINE void add_two(__m256i (&all)[4][2], const std::byte* weights, const std::byte* rows,
                                    size_t row_bytes, size_t chunk) {
    const __m128i a = codes(rows, chunk), b = codes(rows + row_bytes, chunk);
    const __m256i values[2] = {_mm256_cvtepi8_epi16(_mm_unpacklo_epi8(a, b)),
                               _mm256_cvtepi8_epi16(_mm_unpackhi_epi8(a, b))};
    for (size_t lane = 0; lane < 4; ++lane) {
      int32_t both;
      std::memcpy(&both, weights + lane * 8, sizeof(both));
      const __m256i two = _mm256_set1_epi32(both);
      for (size_t i = 0; i < 2; ++i) all[lane][i] = add_products(all[lane][i], values[i], two);
    }
  }

  // sum + the products of neighbours, two by two
  static ALWAYS_INLINE __m256i add_products(__m256i sum, __m256i a, __m256i b) {
#if defined(__AVX512VNNI__) && defined(__AVX512VL__)
    // In words of the machine: GCC 12 copies every sum before it adds to it, and back.
    asm("vpdpwssd %2, %1, %0" : "+v"(sum) : "v"(a), "vm"(b));
    return sum;
#else
    return _mm256_add_epi32(sum, _mm256_madd_epi16(a, b));
#endif
  }

  static ALWAYS_INLINE __m128i codes(const std::byte* row, size_t chunk) {
    return _mm_loadu_si128(reinterpret_cast<const __m128i*>(row + chunk * kChunk));
  }
};

}  // namespace
}  // namespace quire
