#pragma once

#include <cstddef>

#include <immintrin.h>

// Compiled for AVX-512 only, and each file has a copy of its own.

#ifndef ALWAYS_INLINE
#define ALWAYS_INLINE inline __attribute__((always_inline))
#endif

namespace quire {
namespace {

// 16 x 16 numbers of 32 bits.
ALWAYS_INLINE void transpose_words(__m512i (&rows)[16]) {
  __m512i twos[16], fours[16];
#pragma GCC unroll 8
  for (size_t i = 0; i < 8; ++i) {
    twos[2 * i] = _mm512_unpacklo_epi32(rows[2 * i], rows[2 * i + 1]);
    twos[2 * i + 1] = _mm512_unpackhi_epi32(rows[2 * i], rows[2 * i + 1]);
  }
#pragma GCC unroll 4
  for (size_t i = 0; i < 4; ++i) {  // column k of each lane of four, rows 4 i to 4 i + 3
    fours[4 * i] = _mm512_unpacklo_epi64(twos[4 * i], twos[4 * i + 2]);
    fours[4 * i + 1] = _mm512_unpackhi_epi64(twos[4 * i], twos[4 * i + 2]);
    fours[4 * i + 2] = _mm512_unpacklo_epi64(twos[4 * i + 1], twos[4 * i + 3]);
    fours[4 * i + 3] = _mm512_unpackhi_epi64(twos[4 * i + 1], twos[4 * i + 3]);
  }
#pragma GCC unroll 4
  for (size_t k = 0; k < 4; ++k) {
    const __m512i a = _mm512_shuffle_i32x4(fours[k], fours[4 + k], 0x88);
    const __m512i b = _mm512_shuffle_i32x4(fours[8 + k], fours[12 + k], 0x88);
    const __m512i c = _mm512_shuffle_i32x4(fours[k], fours[4 + k], 0xdd);
    const __m512i d = _mm512_shuffle_i32x4(fours[8 + k], fours[12 + k], 0xdd);
    rows[k] = _mm512_shuffle_i32x4(a, b, 0x88);
    rows[8 + k] = _mm512_shuffle_i32x4(a, b, 0xdd);
    rows[4 + k] = _mm512_shuffle_i32x4(c, d, 0x88);
    rows[12 + k] = _mm512_shuffle_i32x4(c, d, 0xdd);
  }
}
}  // namespace
}  // namespace quire
