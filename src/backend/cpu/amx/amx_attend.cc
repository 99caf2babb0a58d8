// Attention to pages of bf16 by `tdpbf16ps`, which multiplies tiles of bf16; between the products, and to other formats, by
// AVX-512.
//
// Compiled for AVX-512, so nothing here may be inlined elsewhere.
#if defined(__x86_64__)

#include "backend/cpu/amx/amx_kernels.h"
#include "backend/cpu/amx/attend_tiles.h"
#include "backend/cpu/amx/tile_instructions.h"
#include "backend/cpu/avx512/attend_isa.h"

namespace quire {
namespace {

struct AmxTiles : Bf16TileInstructions {
  static void configure(size_t queries) {
    TileConfig config;
    for (size_t tile = 0; tile < 8; ++tile) {
      config.set(tile, attend_tile_rows(tile, queries), attend_tile_row_bytes(tile, queries));
    }
    config.load();
  }

  template <size_t N>
  static ALWAYS_INLINE void transpose(const float* shares, uint32_t (*out)[16]) {
    for (size_t q = 0; q < N; q += 4) {
      __m512 rows[4];
      for (size_t i = 0; i < 4; ++i) rows[i] = four_rows<N>(shares + 4 * i * N + q);
      transpose_four(rows, out + q);
    }
  }

 private:
  // [4 rows][4 queries]
  template <size_t N>
  static ALWAYS_INLINE __m512 four_rows(const float* at) {
    if constexpr (N == 4) return _mm512_loadu_ps(at);
    __m512 rows = _mm512_castps128_ps512(_mm_loadu_ps(at));
    rows = _mm512_mask_broadcast_f32x4(rows, 0x00f0, _mm_loadu_ps(at + N));
    rows = _mm512_mask_broadcast_f32x4(rows, 0x0f00, _mm_loadu_ps(at + 2 * N));
    return _mm512_mask_broadcast_f32x4(rows, 0xf000, _mm_loadu_ps(at + 3 * N));
  }

  static ALWAYS_INLINE void transpose_four(__m512 (&rows)[4], uint32_t (*out)[16]) {
    const __m512i places = _mm512_setr_epi32(0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15);
    for (__m512& four : rows) four = _mm512_permutexvar_ps(places, four);  // [4 queries][4 rows]
    const __m512 a = _mm512_shuffle_f32x4(rows[0], rows[1], 0x44),
                 b = _mm512_shuffle_f32x4(rows[0], rows[1], 0xee);
    const __m512 c = _mm512_shuffle_f32x4(rows[2], rows[3], 0x44),
                 d = _mm512_shuffle_f32x4(rows[2], rows[3], 0xee);
    _mm512_store_ps(out[0], _mm512_shuffle_f32x4(a, c, 0x88));
    _mm512_store_ps(out[1], _mm512_shuffle_f32x4(a, c, 0xdd));
    _mm512_store_ps(out[2], _mm512_shuffle_f32x4(b, d, 0x88));
    _mm512_store_ps(out[3], _mm512_shuffle_f32x4(b, d, 0xdd));
  }
};

struct Amx : Avx512 {
  using Bf16 = TileBf16<AmxTiles>;
};

}  // namespace

void attend_amx(const AttendArgs& args) {
  PagesAttention<Amx>(args).run();
}

}  // namespace quire

#endif
