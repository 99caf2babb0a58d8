// Products with f32, f16 and bf16 weights by AVX-512. Compiled for it, so nothing here may be inlined elsewhere.
#if defined(__x86_64__)

#include "backend/cpu/matmul/float_matmul.h"

#include <immintrin.h>

#include "backend/cpu/avx512/avx512_kernels.h"

namespace quire {
namespace {

struct Avx512 {
  using Fetch = NearFetch;
  static constexpr size_t kVectorCols = 16, kPieceCols = 16;
  static constexpr size_t kTileRows = 4, kTileTokens = 6;  // 24 sums and 5 operands in 32 registers
  static constexpr size_t kDirectRows[kDirectTokens] = {4, 4, 4, 4};

  using Vector = __m512;
  static ALWAYS_INLINE Vector load_vector(const float* values) { return _mm512_loadu_ps(values); }
  static ALWAYS_INLINE void store_vector(Vector vector, float* out) { _mm512_storeu_ps(out, vector); }
  static ALWAYS_INLINE Vector fma(Vector a, Vector b, Vector sum) { return _mm512_fmadd_ps(a, b, sum); }

  struct Piece {
    __m512 v[1];
  };

  static ALWAYS_INLINE Piece load(const float* values) { return {{_mm512_loadu_ps(values)}}; }
  static ALWAYS_INLINE void store(const Piece& piece, float* out) { _mm512_storeu_ps(out, piece.v[0]); }

  static ALWAYS_INLINE __m256i load_halves(const std::byte* bytes) {
    return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(bytes));
  }
  static ALWAYS_INLINE Piece widen(F32, const std::byte* bytes) { return {{_mm512_loadu_ps(bytes)}}; }
  static ALWAYS_INLINE Piece widen(F16, const std::byte* bytes) {
    return {{_mm512_cvtph_ps(load_halves(bytes))}};
  }
  static ALWAYS_INLINE Piece widen(Bf16, const std::byte* bytes) {
    return {{_mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(load_halves(bytes)), 16))}};
  }

  static ALWAYS_INLINE Piece add_product(Piece sum, const Piece& a, const Piece& b) {
    return {{_mm512_fmadd_ps(a.v[0], b.v[0], sum.v[0])}};
  }

  static ALWAYS_INLINE float total(const Piece (&lanes)[1]) {
    const __m512 all = lanes[0].v[0];
    const __m256 eight = _mm256_add_ps(_mm512_castps512_ps256(all), _mm512_extractf32x8_ps(all, 1));
    const __m128 four = _mm_add_ps(_mm256_castps256_ps128(eight), _mm256_extractf128_ps(eight, 1));
    const __m128 two = _mm_add_ps(four, _mm_movehl_ps(four, four));
    return _mm_cvtss_f32(_mm_add_ss(two, _mm_movehdup_ps(two)));
  }
};

}  // namespace

void use_avx512_floats(CpuKernels& kernels) {
  use_float_matmul<Avx512>(kernels);
}

}  // namespace quire

#endif
