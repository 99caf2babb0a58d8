// Matrix products by `vpmaddubsw`: a vector holds four columns of eight rows, and the same four columns of a token are
// broadcast. It multiplies unsigned by signed and adds two products in 16 bits, saturating; nothing here comes near:
//
// - Codes of few bits are taken as unsigned numbers, `kLess` above what they are worth. Four products (two of six-bit
//   codes) fit in 16 bits before they are widened, and what kLess adds is corrected once per sub-block.
// - Of the others (q8_0, iq4), the magnitude is multiplied with the activation under the code's sign: two products are
//   at most 2 * 128 * 127 = 32512.
//
// Compiled for AVX2, FMA and F16C, so nothing here may be inlined elsewhere.
#if defined(__x86_64__)

#include <immintrin.h>

#include "backend/cpu/avx2/avx2_kernels.h"
#include "backend/cpu/avx2/panel_reader.h"

namespace quire {
namespace {

constexpr size_t kDirectTokens = 2;      // up to so many tokens, codes go from memory into the product
constexpr size_t kTileTokens = 4;        // 16 rows x 4 tokens: 8 sums in 16 bits, 3 operands; the rest spills
constexpr size_t kPrefetchBytes = 4096;  // ahead of the codes that are read from memory

// Minus kLess * kTimes times the sums of the values of sub-blocks.
template <class Format>
void correct(const int8_t* values, size_t cols, int32_t* corrections) {
  constexpr size_t kSub = PackedBlock<Format>::kSub;
  const __m256i less = _mm256_set1_epi8(char(Codes<Format>::kLess));
  for (size_t c = 0; c < cols; c += 32) {
    const __m256i all = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(values + c));
    const __m256i pairs = _mm256_maddubs_epi16(less, all);
    const __m256i fours = _mm256_madd_epi16(pairs, _mm256_set1_epi16(-Codes<Format>::kTimes));
    const __m256i eights = _mm256_add_epi32(fours, _mm256_shuffle_epi32(fours, 0b10'11'00'01));
    const __m256i sums = _mm256_add_epi32(eights, _mm256_shuffle_epi32(eights, 0b01'00'11'10));
    const int32_t low = _mm256_extract_epi32(sums, 0), high = _mm256_extract_epi32(sums, 4);
    if constexpr (kSub == 32) {
      corrections[c / 32] = low + high;
    } else {
      corrections[c / 16] = low;
      corrections[c / 16 + 1] = high;
    }
  }
}

// ---- one or two tokens: from memory into the product ---------------------------------------------------------------

template <size_t kTokens>
struct DirectSums {
  __m256i prefix[kTokens][kVectors];
  __m256 scaled[kTokens][kVectors];
  __m256 sum[kTokens][kVectors];
  __m256 min_sum[kTokens][kVectors];
};

// Sixteen columns, four at each g.
template <class Format, size_t g0, size_t g1, size_t g2, size_t g3, size_t kTokens>
ALWAYS_INLINE void add_columns(const uint8_t* step, size_t c, const PanelInput* inputs,
                               DirectSums<kTokens>& sums) {
  using Codes = Codes<Format>;
  for (size_t i = 0; i < kVectors; ++i) {
    const __m256i codes[4] = {Codes::template read<g0>(step, i), Codes::template read<g1>(step, i),
                              Codes::template read<g2>(step, i), Codes::template read<g3>(step, i)};
    for (size_t t = 0; t < kTokens; ++t) {
      const int8_t* values = inputs[t].row.values + c;
      const __m256i products =
          Codes::multiply(codes, {values + 4 * g0, values + 4 * g1, values + 4 * g2, values + 4 * g3});
      sums.prefix[t][i] = _mm256_add_epi32(sums.prefix[t][i], products);
    }
  }
}

template <class Format, size_t kTokens>
ALWAYS_INLINE void add_corrections(size_t sub, const PanelInput* inputs, DirectSums<kTokens>& sums) {
  if constexpr (Codes<Format>::kHasCorrection) {
    for (size_t t = 0; t < kTokens; ++t) {
      const __m256i correction = _mm256_set1_epi32(inputs[t].corrections[sub]);
      for (size_t i = 0; i < kVectors; ++i) {
        sums.prefix[t][i] = _mm256_add_epi32(sums.prefix[t][i], correction);
      }
    }
  }
}

template <size_t kTokens>
ALWAYS_INLINE void add_scaled(const PerRow& difference, DirectSums<kTokens>& sums) {
  for (size_t t = 0; t < kTokens; ++t) {
    for (size_t i = 0; i < kVectors; ++i) {
      const __m256 prefix = _mm256_castsi256_ps(sums.prefix[t][i]);
      sums.scaled[t][i] = _mm256_fmadd_ps(prefix, difference.v[i], sums.scaled[t][i]);
    }
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
    const PerRow start = times(scale, -kMagic);
    for (size_t t = 0; t < kTokens; ++t) {
      for (size_t i = 0; i < kVectors; ++i) {
        sums.prefix[t][i] = _mm256_set1_epi32(kMagicBits);
        sums.scaled[t][i] = start.v[i];
      }
    }
    for (size_t c = begin; c < end; c += 32) {
      const uint8_t* step = panel + c / Packed::kValues * Packed::kBytes + Packed::kStart +
                            c % Packed::kValues / 32 * Packed::kStepBytes;
      for (size_t line = 0; line < Packed::kStepBytes; line += 64) {
        __builtin_prefetch(step + kPrefetchBytes + line);
      }
      add_corrections<Format>(c / kSub, inputs, sums);
      if constexpr (kSub == 32) {
        add_columns<Format, 0, 4, 1, 5>(step, c, inputs, sums);  // in pairs that share bytes
        add_columns<Format, 2, 6, 3, 7>(step, c, inputs, sums);
      } else {
        add_columns<Format, 0, 1, 2, 3>(step, c, inputs, sums);
        const PerRow next = Scales::scales(panel, c + 16);
        add_scaled(minus(scale, next), sums);
        scale = next;
        add_corrections<Format>(c / kSub + 1, inputs, sums);
        add_columns<Format, 4, 5, 6, 7>(step, c, inputs, sums);
      }
      const PerRow next = c + 32 < end ? Scales::scales(panel, c + 32) : zero;
      add_scaled(minus(scale, next), sums);
      scale = next;
      if constexpr (Packed::Uniform::kHasMin) {
        for (size_t s = c; s < c + 32; s += kSub) {
          const PerRow min = Scales::mins(panel, s);
          for (size_t t = 0; t < kTokens; ++t) {
            const Q8Row& row = inputs[t].row;
            const __m256 sum = _mm256_set1_ps(kSub == 32 ? row.sums32[s / 32] : row.sums16[s / 16]);
            for (size_t i = 0; i < kVectors; ++i) {
              sums.min_sum[t][i] = _mm256_fmadd_ps(min.v[i], sum, sums.min_sum[t][i]);
            }
          }
        }
      }
    }
    for (size_t t = 0; t < kTokens; ++t) {
      const __m256 factor = _mm256_set1_ps(inputs[t].row.scales[begin / kGroup]);
      for (size_t i = 0; i < kVectors; ++i) {
        sums.sum[t][i] = _mm256_fmadd_ps(sums.scaled[t][i], factor, sums.sum[t][i]);
      }
    }
  }
  for (size_t t = 0; t < kTokens; ++t) {
    for (size_t i = 0; i < kVectors; ++i) {
      __m256 result = sums.sum[t][i];
      if constexpr (Packed::Uniform::kHasMin) result = _mm256_sub_ps(result, sums.min_sum[t][i]);
      _mm256_storeu_ps(out[t] + 8 * i, result);
    }
  }
}

// ---- many tokens: a panel is unpacked once -------------------------------------------------------------------------

template <class Format, size_t g>
ALWAYS_INLINE void open_columns(const uint8_t* step, uint8_t* codes) {
  for (size_t i = 0; i < kVectors; ++i) {
    const __m256i read = Codes<Format>::template read<g>(step, i);
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(codes + 64 * g + 32 * i), read);
  }
}

template <class Format, ActivationForm kForm>
void open_panel(const uint8_t* panel, size_t cols, const OpenPanel& out) {
  using Packed = PackedBlock<Format>;
  constexpr size_t kGroup = group_values(kForm);
  for (size_t c = 0; c < cols; c += 32) {
    const uint8_t* step = panel + c / Packed::kValues * Packed::kBytes + Packed::kStart +
                          c % Packed::kValues / 32 * Packed::kStepBytes;
    uint8_t* codes = out.codes + kPanelRows * c;
    open_columns<Format, 0>(step, codes);
    open_columns<Format, 4>(step, codes);
    open_columns<Format, 1>(step, codes);
    open_columns<Format, 5>(step, codes);
    open_columns<Format, 2>(step, codes);
    open_columns<Format, 6>(step, codes);
    open_columns<Format, 3>(step, codes);
    open_columns<Format, 7>(step, codes);
  }
  PanelScales<Format, PerRow>::open(panel, cols, kGroup, out);
}

template <size_t kTokens>
struct Tile {
  __m256i prefix[kTokens][kVectors];
  __m256 scaled[kTokens][kVectors];
};

// Sixteen columns.
template <class Format, size_t kTokens>
ALWAYS_INLINE void add_opened(const uint8_t* opened, size_t c, const PanelInput* inputs,
                              Tile<kTokens>& tile) {
  __m256i codes[kVectors][4];
  for (size_t i = 0; i < kVectors; ++i) {
    for (size_t g = 0; g < 4; ++g) codes[i][g] = load_bytes(opened + 32 * i + 64 * g);
  }
  for (size_t t = 0; t < kTokens; ++t) {
    const int8_t* values = inputs[t].row.values + c;
    for (size_t i = 0; i < kVectors; ++i) {
      const __m256i products =
          Codes<Format>::multiply(codes[i], {values, values + 4, values + 8, values + 12});
      tile.prefix[t][i] = _mm256_add_epi32(tile.prefix[t][i], products);
    }
  }
}

// At the end of a sub-block.
template <class Format, size_t kTokens>
ALWAYS_INLINE void add_differences(const OpenPanel& panel, size_t sub, const PanelInput* inputs,
                                   Tile<kTokens>& tile) {
  const PerRow difference = PerRow::load(panel.differences + kPanelRows * sub);
  for (size_t t = 0; t < kTokens; ++t) {
    for (size_t i = 0; i < kVectors; ++i) {
      __m256i& prefix = tile.prefix[t][i];
      if constexpr (Codes<Format>::kHasCorrection) {
        prefix = _mm256_add_epi32(prefix, _mm256_set1_epi32(inputs[t].corrections[sub]));
      }
      tile.scaled[t][i] = _mm256_fmadd_ps(_mm256_castsi256_ps(prefix), difference.v[i], tile.scaled[t][i]);
    }
  }
}

template <class Format, ActivationForm kForm, size_t kTokens>
void multiply_tile(const OpenPanel& panel, size_t cols, const PanelInput* inputs, float (*out)[kPanelRows]) {
  constexpr size_t kSub = PackedBlock<Format>::kSub, kGroup = group_values(kForm);
  __m256 sums[kTokens][kVectors] = {};
  for (size_t begin = 0; begin < cols; begin += kGroup) {
    const size_t end = begin + kGroup < cols ? begin + kGroup : cols;
    const PerRow start = PerRow::load(panel.starts + kPanelRows * (begin / kGroup));
    Tile<kTokens> tile;
    for (size_t t = 0; t < kTokens; ++t) {
      for (size_t i = 0; i < kVectors; ++i) {
        tile.prefix[t][i] = _mm256_set1_epi32(kMagicBits);
        tile.scaled[t][i] = start.v[i];
      }
    }
    for (size_t c = begin; c < end; c += 16) {
      add_opened<Format>(panel.codes + kPanelRows * c, c, inputs, tile);
      if (kSub == 16 || c % 32 == 16) add_differences<Format>(panel, c / kSub, inputs, tile);
    }
    for (size_t t = 0; t < kTokens; ++t) {
      const __m256 factor = _mm256_set1_ps(inputs[t].row.scales[begin / kGroup]);
      for (size_t i = 0; i < kVectors; ++i) {
        sums[t][i] = _mm256_fmadd_ps(tile.scaled[t][i], factor, sums[t][i]);
      }
    }
  }
  if constexpr (UniformBlock<Format>::kHasMin) {
    __m256 min_sums[kTokens][kVectors] = {};
    for (size_t s = 0; s < cols / kSub; ++s) {
      const PerRow min = PerRow::load(panel.mins + kPanelRows * s);
      for (size_t t = 0; t < kTokens; ++t) {
        const __m256 sum = _mm256_set1_ps(kSub == 32 ? inputs[t].row.sums32[s] : inputs[t].row.sums16[s]);
        for (size_t i = 0; i < kVectors; ++i) {
          min_sums[t][i] = _mm256_fmadd_ps(min.v[i], sum, min_sums[t][i]);
        }
      }
    }
    for (size_t t = 0; t < kTokens; ++t) {
      for (size_t i = 0; i < kVectors; ++i) sums[t][i] = _mm256_sub_ps(sums[t][i], min_sums[t][i]);
    }
  }
  for (size_t t = 0; t < kTokens; ++t) {
    for (size_t i = 0; i < kVectors; ++i) _mm256_storeu_ps(out[t] + 8 * i, sums[t][i]);
  }
}

template <class Format, ActivationForm kForm>
void matmul(const MatmulArgs& args) {
  using Packed = PackedBlock<Format>;
  static constexpr PanelKernels kKernels = {
      .block_bytes = Packed::kBytes,
      .block_values = Packed::kValues,
      .sub = Packed::kSub,
      .group = group_values(kForm),
      .direct_tokens = kDirectTokens,
      .tile_tokens = kTileTokens,
      .direct = {multiply_direct<Format, kForm, 1>, multiply_direct<Format, kForm, 2>},
      .open = open_panel<Format, kForm>,
      .tiles = {multiply_tile<Format, kForm, 1>, multiply_tile<Format, kForm, 2>,
                multiply_tile<Format, kForm, 3>, multiply_tile<Format, kForm, 4>},
      .correct = Codes<Format>::kHasCorrection ? correct<Format> : nullptr,
      .outliers = kOutlierKernels<Format>,
  };
  multiply_panels(args, kKernels);
}

}  // namespace

void use_avx2(CpuKernels& kernels) {
  kernels.name = "avx2";
  use_avx2_floats(kernels);
  kernels.attend = attend_avx2;
#define QUIRE_FORMAT(dtype, Format, activation)                                              \
  kernels.matmul[size_t(DType::dtype)] = matmul<format::Format, ActivationForm::activation>; \
  kernels.panels[size_t(DType::dtype)] = panel_format<format::Format>();
#include "backend/cpu/quantized_formats.inc"
#undef QUIRE_FORMAT
}

}  // namespace quire

#endif
