// Compiled for AVX2, FMA and F16C, so nothing here may be inlined elsewhere.
#if defined(__x86_64__)

#include <immintrin.h>

#include "backend/cpu/attention/attend_pages.h"
#include "backend/cpu/avx2/avx2_kernels.h"
#include "backend/cpu/avx2/word_codes.h"
#include "backend/cpu/avx2/word_nibbles.h"

namespace quire {
namespace {

struct Avx2 {
  using Fetch = NearFetch;
  static constexpr size_t kLanes = 8, kScoreRows = 2, kValueVectors = 2, kValueQueries = 4, kQuadLanes = 8;
  static constexpr bool kReadsKeys = false, kRoundsToBf16 = true;
  static constexpr float kFp8Factor = 0x1p-52f;
  using Quad = const float*;
  using Bf16 = NoBf16;
  using Codes = WordCodes;
  using Nibbles = WordNibbles;

  template <KvFormat format>
  static ALWAYS_INLINE Floats<8> load(const std::byte* bytes) {
    if constexpr (format == KvFormat::f32) return load_lanes<Floats<8>>(bytes);
    if constexpr (format == KvFormat::fp8) return load_fp8(bytes);
    const __m128i halves = _mm_loadu_si128(reinterpret_cast<const __m128i*>(bytes));
    if constexpr (format == KvFormat::f16) return Floats<8>(_mm256_cvtph_ps(halves));
    return Floats<8>(_mm256_slli_epi32(_mm256_cvtepu16_epi32(halves), 16));
  }
  // By way of f16, whose least numbers cost no more than others: 2^-8 of what they are.
  static ALWAYS_INLINE Floats<8> load_fp8(const std::byte* bytes) {
    const __m128i codes = _mm_cvtepi8_epi16(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(bytes)));
    const __m128i halves = _mm_and_si128(_mm_slli_epi16(codes, 7), _mm_set1_epi16(int16_t(0xbfff)));
    return Floats<8>(_mm256_cvtph_ps(halves));
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
    if constexpr (sizeof(Lanes) == 32) return Lanes(_mm256_broadcast_ss(value));
    if constexpr (sizeof(Lanes) == 16) return Lanes(_mm_broadcast_ss(value));
  }
  static ALWAYS_INLINE Floats<8> repeat_quad(const float* values) {
    return Floats<8>(_mm256_broadcast_ps(reinterpret_cast<const __m128*>(values)));
  }
  static ALWAYS_INLINE Floats<8> join_quads(const Floats<8> (&rows)[4]) {
    const __m256 ab = _mm256_hadd_ps(__m256(rows[0]), __m256(rows[1]));
    const __m256 by_query = _mm256_hadd_ps(ab, _mm256_hadd_ps(__m256(rows[2]), __m256(rows[3])));
    return Floats<8>(_mm256_permutevar8x32_ps(by_query, _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7)));
  }
  static ALWAYS_INLINE Floats<4> multiply_add(Floats<4> a, Floats<4> b, Floats<4> c) {
    return Floats<4>(_mm_fmadd_ps(__m128(a), __m128(b), __m128(c)));
  }
  static ALWAYS_INLINE Floats<8> multiply_add(Floats<8> a, Floats<8> b, Floats<8> c) {
    return Floats<8>(_mm256_fmadd_ps(__m256(a), __m256(b), __m256(c)));
  }
  template <class Lanes>
  static ALWAYS_INLINE Lanes larger(Lanes a, Lanes b) {
    return a > b ? a : b;
  }
};

}  // namespace

void attend_avx2(const AttendArgs& args) {
  PagesAttention<Avx2>(args).run();
}

}  // namespace quire

#endif
