// Attention with AVX-512. Included by files that are compiled for it, so nothing here may have a name that the linker sees.
#pragma once

#include <immintrin.h>

#include "backend/cpu/attention/attend_pages.h"
#include "backend/cpu/avx2/word_nibbles.h"
#include "backend/cpu/avx512/wide_codes.h"

namespace quire {
namespace {

struct Avx512 {
  using Fetch = NearFetch;
  static constexpr size_t kLanes = 16, kScoreRows = 4, kValueVectors = 4, kValueQueries = 6, kQuadLanes = 16;
  static constexpr bool kReadsKeys = false, kRoundsToBf16 = true;
  static constexpr float kFp8Factor = 0x1p-52f;
  using Quad = const float*;
  using Bf16 = NoBf16;
  using Codes = WideCodes;
  using Nibbles = WordNibbles;

  template <KvFormat format>
  static ALWAYS_INLINE Floats<16> load(const std::byte* bytes) {
    if constexpr (format == KvFormat::f32) return load_lanes<Floats<16>>(bytes);
    if constexpr (format == KvFormat::fp8) return load_fp8(bytes);
    const __m256i halves = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(bytes));
    if constexpr (format == KvFormat::f16) return Floats<16>(_mm512_cvtph_ps(halves));
    return Floats<16>(_mm512_slli_epi32(_mm512_cvtepu16_epi32(halves), 16));
  }
  // By way of f16, whose least numbers cost no more than others: 2^-8 of what they are.
  static ALWAYS_INLINE Floats<16> load_fp8(const std::byte* bytes) {
    const __m256i codes = _mm256_cvtepi8_epi16(_mm_loadu_si128(reinterpret_cast<const __m128i*>(bytes)));
    const __m256i halves = _mm256_and_si256(_mm256_slli_epi16(codes, 7), _mm256_set1_epi16(int16_t(0xbfff)));
    return Floats<16>(_mm512_cvtph_ps(halves));
  }
  template <KvFormat format>
  static ALWAYS_INLINE Quad quad(const std::byte* bytes) {
    static_assert(format == KvFormat::f32);
    return reinterpret_cast<const float*>(bytes);
  }
  template <int i, class Lanes>
  static ALWAYS_INLINE Lanes add_product(Lanes sum, Lanes a, Quad b) {
    return multiply_add(a, broadcast<Lanes>(b + i), sum);
  }
  // From memory, where it costs nothing: a vector of zeros plus a number would be an addition, and a shuffle.
  template <class Lanes>
  static ALWAYS_INLINE Lanes broadcast(const float* value) {
    if constexpr (sizeof(Lanes) == 64) return Lanes(_mm512_set1_ps(*value));
    if constexpr (sizeof(Lanes) == 32) return Lanes(_mm256_broadcast_ss(value));
    if constexpr (sizeof(Lanes) == 16) return Lanes(_mm_broadcast_ss(value));
  }
  static ALWAYS_INLINE Floats<16> repeat_quad(const float* values) {
    return Floats<16>(_mm512_broadcast_f32x4(_mm_loadu_ps(values)));
  }
  static ALWAYS_INLINE Floats<16> join_quads(const Floats<16> (&rows)[4]) {
    const Floats<16> ab = add_neighbours(rows[0], rows[1]), cd = add_neighbours(rows[2], rows[3]);
    const __m512 by_query = __m512(add_neighbours(ab, cd));
    const __m512i places = _mm512_setr_epi32(0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15);
    return Floats<16>(_mm512_permutexvar_ps(places, by_query));
  }
  // In every four lanes: a0 + a1, a2 + a3, b0 + b1, b2 + b3.
  static ALWAYS_INLINE Floats<16> add_neighbours(Floats<16> a, Floats<16> b) {
    const __m512 even = _mm512_shuffle_ps(__m512(a), __m512(b), 0b10'00'10'00);
    const __m512 odd = _mm512_shuffle_ps(__m512(a), __m512(b), 0b11'01'11'01);
    return Floats<16>(_mm512_add_ps(even, odd));
  }
  static ALWAYS_INLINE Floats<4> multiply_add(Floats<4> a, Floats<4> b, Floats<4> c) {
    return Floats<4>(_mm_fmadd_ps(__m128(a), __m128(b), __m128(c)));
  }
  static ALWAYS_INLINE Floats<8> multiply_add(Floats<8> a, Floats<8> b, Floats<8> c) {
    return Floats<8>(_mm256_fmadd_ps(__m256(a), __m256(b), __m256(c)));
  }
  static ALWAYS_INLINE Floats<16> multiply_add(Floats<16> a, Floats<16> b, Floats<16> c) {
    return Floats<16>(_mm512_fmadd_ps(__m512(a), __m512(b), __m512(c)));
  }
  template <class Lanes>
  static ALWAYS_INLINE Lanes larger(Lanes a, Lanes b) {
    return a > b ? a : b;
  }
};

}  // namespace
}  // namespace quire
