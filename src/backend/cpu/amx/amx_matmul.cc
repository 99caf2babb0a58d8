// Products of the types that are not grouped (grouped_weights.h) by `tdpbssd`, which multiplies a tile of tokens with a tile of
// codes over 64 columns: four of the codes' rows are a row of an opened panel. What it leaves is scaled by AVX-512.
//
// Compiled for AVX-512 with VNNI, so nothing here may be inlined elsewhere.
#if defined(__x86_64__)

#include <immintrin.h>

#include "backend/cpu/amx/amx_kernels.h"
#include "backend/cpu/amx/tile_instructions.h"
#include "backend/cpu/amx/tile_kernels.h"
#include "backend/cpu/avx512/avx512_kernels.h"
#include "backend/cpu/avx512/panel_reader.h"

namespace quire {
namespace {

// ---- opening to products of codes and sub-scales ---------------------------------------------------------------------

// A sub-block's scales, twice each.
ALWAYS_INLINE __m512i load_twice(const uint8_t* bytes) {
  const __m128i all = _mm_loadu_si128(reinterpret_cast<const __m128i*>(bytes));
  const __m256i twice = _mm256_set_m128i(_mm_unpackhi_epi8(all, all), _mm_unpacklo_epi8(all, all));
  return _mm512_cvtepi8_epi16(twice);
}

// Four columns: even and odd ones are multiplied apart, in 16 bits.
template <class Format, size_t g>
ALWAYS_INLINE void fold_columns(const uint8_t* step, __m512i scale, uint8_t* low, uint8_t* high) {
  const __m512i codes = Codes<Format, 0>::template read<g>(step);
  const __m512i even = _mm512_mullo_epi16(_mm512_srai_epi16(_mm512_slli_epi16(codes, 8), 8), scale);
  const __m512i odd = _mm512_mullo_epi16(_mm512_srai_epi16(codes, 8), scale);
  constexpr int kSelect = 0xca;  // a ? b : c, bit by bit
  const __m512i is_even = _mm512_set1_epi16(0x00ff);
  const __m512i lows = _mm512_ternarylogic_epi32(is_even, even, _mm512_slli_epi16(odd, 8), kSelect);
  const __m512i highs = _mm512_ternarylogic_epi32(is_even, _mm512_srli_epi16(even, int(kFoldBits)),
                                                  _mm512_slli_epi16(odd, 8 - int(kFoldBits)), kSelect);
  _mm512_storeu_si512(low + 64 * g, _mm512_and_si512(lows, every_byte(127)));
  _mm512_storeu_si512(high + 64 * g, highs);
}

template <class Format>
void open_folded(const uint8_t* panel, size_t cols, const OpenPanel& out) {
  using Packed = PackedBlock<Format>;
  constexpr size_t kSubsInStep = 32 / Packed::kSub;
  uint8_t *low = out.codes, *high = out.codes + kPanelRows * cols;
  for (size_t c = 0; c < cols; c += 32, low += 32 * kPanelRows, high += 32 * kPanelRows) {
    const uint8_t* block = panel + c / Packed::kValues * Packed::kBytes;
    const size_t s = c % Packed::kValues / 32;
    const uint8_t* step = block + Packed::kStart + s * Packed::kStepBytes;
    const uint8_t* scales = block + Packed::kSubScales + kPanelRows * kSubsInStep * s;
    const __m512i first = load_twice(scales);
    const __m512i second = kSubsInStep == 1 ? first : load_twice(scales + kPanelRows);
    fold_columns<Format, 0>(step, first, low, high);
    fold_columns<Format, 1>(step, first, low, high);
    fold_columns<Format, 2>(step, first, low, high);
    fold_columns<Format, 3>(step, first, low, high);
    fold_columns<Format, 4>(step, second, low, high);
    fold_columns<Format, 5>(step, second, low, high);
    fold_columns<Format, 6>(step, second, low, high);
    fold_columns<Format, 7>(step, second, low, high);
  }
  PanelScales<Format, PerRow>::open_blocks(panel, cols, out);
}

struct Amx : TileInstructions {
  static void configure(size_t tokens) {
    TileConfig config;
    for (size_t tile = 0; tile < 8; ++tile) {
      const TileShape shape = tile_shape(tile, tokens);
      config.set(tile, shape.rows, shape.row_bytes);
    }
    config.load();
  }

  template <size_t kSums, size_t kInputs, size_t kCodes>
  static ALWAYS_INLINE void multiply() {
    asm volatile("tdpbssd %%tmm%c2, %%tmm%c1, %%tmm%c0" : : "i"(kSums), "i"(kInputs), "i"(kCodes));
  }

  struct Lanes {
    __m512 v;

    static ALWAYS_INLINE Lanes load(const float* values) { return {_mm512_loadu_ps(values)}; }
    static ALWAYS_INLINE Lanes broadcast(const float* value) { return {_mm512_set1_ps(*value)}; }
    ALWAYS_INLINE void store(float* out) const { _mm512_storeu_ps(out, v); }
  };
  static ALWAYS_INLINE Lanes multiply_add(Lanes a, Lanes b, Lanes c) {
    return {_mm512_fmadd_ps(a.v, b.v, c.v)};
  }
  static ALWAYS_INLINE Lanes multiply(Lanes a, Lanes b) { return {_mm512_mul_ps(a.v, b.v)}; }
  static ALWAYS_INLINE Lanes multiply_subtract(Lanes a, Lanes b, Lanes c) {
    return {_mm512_fnmadd_ps(a.v, b.v, c.v)};
  }

  struct Pairs {
    __m512i v;

    static ALWAYS_INLINE Pairs load(const int16_t* values) { return {_mm512_loadu_si512(values)}; }
  };
  struct Ints {
    __m512i v;

    static ALWAYS_INLINE Ints zero() { return {_mm512_setzero_si512()}; }
  };
  static ALWAYS_INLINE Ints add_products(Ints sum, Pairs pairs, const int16_t* two) {
    int32_t both;
    std::memcpy(&both, two, sizeof(both));
    return {_mm512_dpwssd_epi32(sum.v, pairs.v, _mm512_set1_epi32(both))};
  }
  static ALWAYS_INLINE Lanes to_floats(Ints sums) { return {_mm512_cvtepi32_ps(sums.v)}; }
  static ALWAYS_INLINE Lanes to_floats(const int32_t* low, const int32_t* high) {
    const __m512i above = _mm512_slli_epi32(_mm512_loadu_si512(high), kFoldBits);
    return {_mm512_cvtepi32_ps(_mm512_add_epi32(_mm512_loadu_si512(low), above))};
  }

  template <class Format>
  static void open(const uint8_t* panel, size_t cols, const OpenPanel& out) {
    open_folded<Format>(panel, cols, out);
  }

  template <class Format>
  static constexpr OutlierKernels kOutliers = kOutlierKernels<Format>;
};

template <class Format>
void matmul(const MatmulArgs& args) {
  if (args.tokens < kLeastTileTokens) return matmul_vnni<Format, ActivationForm::q8_256>(args);
  static constexpr TileKernels kKernels = tile_kernels<Amx, Format>();
  multiply_tiles(args, kKernels);
}

}  // namespace

void use_amx(CpuKernels& kernels) {
  kernels.name = "amx_grouped";
  kernels.matmul[size_t(DType::q2_k)] = matmul<format::Q2_K>;
  kernels.matmul[size_t(DType::q3_k)] = matmul<format::Q3_K>;
  kernels.matmul[size_t(DType::q4_k)] = matmul<format::Q4_K>;
  kernels.matmul[size_t(DType::q5_k)] = matmul<format::Q5_K>;
  kernels.matmul[size_t(DType::q6_k)] = matmul<format::Q6_K>;
  kernels.matmul[size_t(DType::iq4_xs)] = matmul<format::Iq4Xs>;
  use_amx_grouped(kernels);
}

}  // namespace quire

#endif
