// Matrix products by `vpdpbusd`: a vector holds four columns of all sixteen rows, and the same four columns of a token
// are broadcast. It multiplies unsigned by signed, so codes are taken 128 above what they are worth, and minus 128 times
// the sum of the activations is added once per sub-block. Integer sums are exact on every way there.
//
// Compiled for AVX-512 with VNNI, so nothing here may be inlined elsewhere.
#if defined(__x86_64__)

#include <immintrin.h>

#include "backend/cpu/avx512/avx512_kernels.h"
#include "backend/cpu/avx512/panel_reader.h"

namespace quire {
namespace {

constexpr size_t kDirectTokens = 4;      // up to so many tokens, codes go from memory into the product
constexpr size_t kTileTokens = 8;        // 8 integer and 16 float sums, 4 operands
constexpr size_t kPrefetchBytes = 8192;  // ahead of the codes that are read from memory

constexpr int kLess = 128;  // codes less this are what they are worth

// The sum so far and the products of four columns.
ALWAYS_INLINE __m512i add_products(__m512i sum, __m512i codes, const int8_t* values) {
  int32_t four;
  std::memcpy(&four, values, sizeof(four));
  return _mm512_dpbusd_epi32(sum, codes, _mm512_set1_epi32(four));
}

// Minus kLess times the sums of the values of sub-blocks.
template <size_t kSub>
void correct(const int8_t* values, size_t cols, int32_t* corrections) {
  const __m256i zero = _mm256_setzero_si256();
  for (size_t c = 0; c < cols; c += 32) {
    const __m256i all = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(values + c));
    const __m256i fours = _mm256_dpbusd_epi32(zero, _mm256_set1_epi8(char(kLess)), all);
    const __m256i eights = _mm256_add_epi32(fours, _mm256_shuffle_epi32(fours, 0b10'11'00'01));
    const __m256i sums = _mm256_add_epi32(eights, _mm256_shuffle_epi32(eights, 0b01'00'11'10));
    const int32_t low = _mm256_extract_epi32(sums, 0), high = _mm256_extract_epi32(sums, 4);
    if constexpr (kSub == 32) {
      corrections[c / 32] = -(low + high);
    } else {
      corrections[c / 16] = -low;
      corrections[c / 16 + 1] = -high;
    }
  }
}

// ---- up to four tokens: from memory into the product ---------------------------------------------------------------

template <size_t kTokens>
struct DirectSums {
  __m512i part[kTokens];  // of a sub-block; unlike one chain through the prefix, those of several can overlap
  __m512i prefix[kTokens];
  __m512 scaled[kTokens];
  __m512 sum[kTokens];
  __m512 min_sum[kTokens];
};

template <size_t kTokens>
ALWAYS_INLINE void begin_sub(size_t sub, const PanelInput* inputs, DirectSums<kTokens>& sums) {
  for (size_t t = 0; t < kTokens; ++t) sums.part[t] = _mm512_set1_epi32(inputs[t].corrections[sub]);
}

template <class Format, size_t g, size_t kTokens>
ALWAYS_INLINE void add_columns(const uint8_t* step, size_t c, const PanelInput* inputs,
                               DirectSums<kTokens>& sums) {
  const __m512i codes = Codes<Format, kLess>::template read<g>(step);
  for (size_t t = 0; t < kTokens; ++t) {
    sums.part[t] = add_products(sums.part[t], codes, inputs[t].row.values + c + 4 * g);
  }
}

template <size_t kTokens>
ALWAYS_INLINE void end_sub(const PerRow& difference, DirectSums<kTokens>& sums) {
  for (size_t t = 0; t < kTokens; ++t) {
    sums.prefix[t] = _mm512_add_epi32(sums.prefix[t], sums.part[t]);
    sums.scaled[t] = _mm512_fmadd_ps(_mm512_castsi512_ps(sums.prefix[t]), difference.v[0], sums.scaled[t]);
  }
}

template <class Format, ActivationForm kForm, size_t kTokens>
void multiply_direct(const uint8_t* panel, size_t cols, const PanelInput* inputs, float (*out)[kPanelRows]) {
  using Packed = PackedBlock<Format>;
  using Scales = PanelScales<Format, PerRow>;
  constexpr size_t kSub = Packed::kSub, kGroup = group_values(kForm);
  const PerRow zero = {};
  DirectSums<kTokens> sums = {};
  for (size_t begin = 0; begin < cols; begin += kGroup) {
    const size_t end = begin + kGroup < cols ? begin + kGroup : cols;
    PerRow scale = Scales::scales(panel, begin);
    for (size_t t = 0; t < kTokens; ++t) {
      sums.prefix[t] = _mm512_set1_epi32(kMagicBits);
      sums.scaled[t] = times(scale, -kMagic).v[0];
    }
    for (size_t c = begin; c < end; c += 32) {
      const uint8_t* step = panel + c / Packed::kValues * Packed::kBytes + Packed::kStart +
                            c % Packed::kValues / 32 * Packed::kStepBytes;
      for (size_t line = 0; line < Packed::kStepBytes; line += 64) {
        __builtin_prefetch(step + kPrefetchBytes + line);
      }
      begin_sub(c / kSub, inputs, sums);
      add_columns<Format, 0>(step, c, inputs, sums);
      add_columns<Format, 1>(step, c, inputs, sums);
      add_columns<Format, 2>(step, c, inputs, sums);
      add_columns<Format, 3>(step, c, inputs, sums);
      if constexpr (kSub == 16) {
        const PerRow next = Scales::scales(panel, c + 16);
        end_sub(minus(scale, next), sums);
        scale = next;
        begin_sub(c / kSub + 1, inputs, sums);
      }
      add_columns<Format, 4>(step, c, inputs, sums);
      add_columns<Format, 5>(step, c, inputs, sums);
      add_columns<Format, 6>(step, c, inputs, sums);
      add_columns<Format, 7>(step, c, inputs, sums);
      const PerRow next = c + 32 < end ? Scales::scales(panel, c + 32) : zero;
      end_sub(minus(scale, next), sums);
      scale = next;
      if constexpr (Packed::Uniform::kHasMin) {
        for (size_t s = c; s < c + 32; s += kSub) {
          const PerRow min = Scales::mins(panel, s);
          for (size_t t = 0; t < kTokens; ++t) {
            const Q8Row& row = inputs[t].row;
            const __m512 sum = _mm512_set1_ps(kSub == 32 ? row.sums32[s / 32] : row.sums16[s / 16]);
            sums.min_sum[t] = _mm512_fmadd_ps(min.v[0], sum, sums.min_sum[t]);
          }
        }
      }
    }
    for (size_t t = 0; t < kTokens; ++t) {
      const __m512 factor = _mm512_set1_ps(inputs[t].row.scales[begin / kGroup]);
      sums.sum[t] = _mm512_fmadd_ps(sums.scaled[t], factor, sums.sum[t]);
    }
  }
  for (size_t t = 0; t < kTokens; ++t) {
    __m512 result = sums.sum[t];
    if constexpr (Packed::Uniform::kHasMin) result = _mm512_sub_ps(result, sums.min_sum[t]);
    _mm512_storeu_ps(out[t], result);
  }
}

// ---- many tokens: a panel is unpacked once -------------------------------------------------------------------------

template <size_t kTokens>
struct Tile {
  __m512i prefix[kTokens];
  __m512 scaled[kTokens];
};

// Sixteen columns.
template <size_t kTokens>
ALWAYS_INLINE void add_opened(const uint8_t* opened, size_t c, const PanelInput* inputs,
                              Tile<kTokens>& tile) {
  const __m512i codes[4] = {load_bytes(opened), load_bytes(opened + 64), load_bytes(opened + 128),
                            load_bytes(opened + 192)};
  for (size_t t = 0; t < kTokens; ++t) {
    const int8_t* values = inputs[t].row.values + c;
    __m512i sum = add_products(tile.prefix[t], codes[0], values);
    sum = add_products(sum, codes[1], values + 4);
    sum = add_products(sum, codes[2], values + 8);
    tile.prefix[t] = add_products(sum, codes[3], values + 12);
  }
}

// At the end of a sub-block.
template <size_t kTokens>
ALWAYS_INLINE void add_differences(const OpenPanel& panel, size_t sub, const PanelInput* inputs,
                                   Tile<kTokens>& tile) {
  const PerRow difference = PerRow::load(panel.differences + kPanelRows * sub);
  for (size_t t = 0; t < kTokens; ++t) {
    tile.prefix[t] = _mm512_add_epi32(tile.prefix[t], _mm512_set1_epi32(inputs[t].corrections[sub]));
    tile.scaled[t] = _mm512_fmadd_ps(_mm512_castsi512_ps(tile.prefix[t]), difference.v[0], tile.scaled[t]);
  }
}

// How codes were packed no longer matters here.
template <size_t kSub, ActivationForm kForm, bool kHasMin, size_t kTokens>
void multiply_tile(const OpenPanel& panel, size_t cols, const PanelInput* inputs, float (*out)[kPanelRows]) {
  constexpr size_t kGroup = group_values(kForm);
  __m512 sums[kTokens] = {};
  for (size_t begin = 0; begin < cols; begin += kGroup) {
    const size_t end = begin + kGroup < cols ? begin + kGroup : cols;
    const PerRow start = PerRow::load(panel.starts + kPanelRows * (begin / kGroup));
    Tile<kTokens> tile;
    for (size_t t = 0; t < kTokens; ++t) {
      tile.prefix[t] = _mm512_set1_epi32(kMagicBits);
      tile.scaled[t] = start.v[0];
    }
    for (size_t c = begin; c < end; c += kSub) {
      for (size_t s = 0; s < kSub; s += 16) {
        add_opened(panel.codes + kPanelRows * (c + s), c + s, inputs, tile);
      }
      add_differences(panel, c / kSub, inputs, tile);
    }
    for (size_t t = 0; t < kTokens; ++t) {
      const __m512 factor = _mm512_set1_ps(inputs[t].row.scales[begin / kGroup]);
      sums[t] = _mm512_fmadd_ps(tile.scaled[t], factor, sums[t]);
    }
  }
  if constexpr (kHasMin) {
    __m512 min_sums[kTokens] = {};
    for (size_t s = 0; s < cols / kSub; ++s) {
      const PerRow min = PerRow::load(panel.mins + kPanelRows * s);
      for (size_t t = 0; t < kTokens; ++t) {
        const __m512 sum = _mm512_set1_ps(kSub == 32 ? inputs[t].row.sums32[s] : inputs[t].row.sums16[s]);
        min_sums[t] = _mm512_fmadd_ps(min.v[0], sum, min_sums[t]);
      }
    }
    for (size_t t = 0; t < kTokens; ++t) sums[t] = _mm512_sub_ps(sums[t], min_sums[t]);
  }
  for (size_t t = 0; t < kTokens; ++t) _mm512_storeu_ps(out[t], sums[t]);
}

}  // namespace

template <class Format, ActivationForm kForm>
void matmul_vnni(const MatmulArgs& args) {
  using Packed = PackedBlock<Format>;
  constexpr size_t kSub = Packed::kSub;
  constexpr bool kHasMin = Packed::Uniform::kHasMin;
  static constexpr PanelKernels kKernels = {
      .block_bytes = Packed::kBytes,
      .block_values = Packed::kValues,
      .sub = kSub,
      .group = group_values(kForm),
      .direct_tokens = kDirectTokens,
      .tile_tokens = kTileTokens,
      .direct = {multiply_direct<Format, kForm, 1>, multiply_direct<Format, kForm, 2>,
                 multiply_direct<Format, kForm, 3>, multiply_direct<Format, kForm, 4>},
      .open = open_panel<Format, kForm, kLess>,
      .tiles = {multiply_tile<kSub, kForm, kHasMin, 1>, multiply_tile<kSub, kForm, kHasMin, 2>,
                multiply_tile<kSub, kForm, kHasMin, 3>, multiply_tile<kSub, kForm, kHasMin, 4>,
                multiply_tile<kSub, kForm, kHasMin, 5>, multiply_tile<kSub, kForm, kHasMin, 6>,
                multiply_tile<kSub, kForm, kHasMin, 7>, multiply_tile<kSub, kForm, kHasMin, 8>},
      .correct = correct<kSub>,
      .outliers = kOutlierKernels<Format>,
  };
  multiply_panels(args, kKernels);
}

#define QUIRE_FORMAT(dtype, Format, activation) \
  template void matmul_vnni<format::Format, ActivationForm::activation>(const MatmulArgs&);
#include "backend/cpu/quantized_formats.inc"
#undef QUIRE_FORMAT

void use_avx512(CpuKernels& kernels) {
  kernels.name = "avx512";
  use_avx512_floats(kernels);
  use_avx512_rows(kernels);
  kernels.attend = attend_avx512;
#define QUIRE_FORMAT(dtype, Format, activation)                                                   \
  kernels.matmul[size_t(DType::dtype)] = matmul_vnni<format::Format, ActivationForm::activation>; \
  kernels.panels[size_t(DType::dtype)] = panel_format<format::Format>();
#include "backend/cpu/quantized_formats.inc"
#undef QUIRE_FORMAT
}

}  // namespace quire

#endif
