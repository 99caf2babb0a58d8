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
#include "backend/cpu/matmul/stream_fetch.h"

namespace quire {
namespace {

constexpr size_t kDirectTokens = 2;  // up to so many tokens, codes go from memory into the product
constexpr size_t kTileTokens = 4;    // 16 rows x 4 tokens: 8 sums in 16 bits, 3 operands; the rest spills

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
                               __m256i (&sums)[kTokens][kVectors]) {
  using Codes = Codes<Format>;
  for (size_t i = 0; i < kVectors; ++i) {
    const __m256i codes[4] = {Codes::template read<g0>(step, i), Codes::template read<g1>(step, i),
                              Codes::template read<g2>(step, i), Codes::template read<g3>(step, i)};
    for (size_t t = 0; t < kTokens; ++t) {
      const int8_t* values = inputs[t].row.values + c;
      const __m256i products =
          Codes::multiply(codes, {values + 4 * g0, values + 4 * g1, values + 4 * g2, values + 4 * g3});
      sums[t][i] = _mm256_add_epi32(sums[t][i], products);
    }
  }
}

template <class Format, size_t kTokens>
ALWAYS_INLINE void add_corrections(size_t sub, const PanelInput* inputs, __m256i (&sums)[kTokens][kVectors]) {
  if constexpr (Codes<Format>::kHasCorrection) {
    for (size_t t = 0; t < kTokens; ++t) {
      const __m256i correction = _mm256_set1_epi32(inputs[t].corrections[sub]);
      for (size_t i = 0; i < kVectors; ++i) sums[t][i] = _mm256_add_epi32(sums[t][i], correction);
    }
  }
}

template <class Format, ActivationForm kForm, size_t kTokens>
requires(!In256<Format>) void multiply_direct(const uint8_t* panel, size_t cols, const PanelInput* inputs,
                                              float (*out)[kPanelRows]) {
  using Packed = PackedBlock<Format>;
  using Scales = PanelScales<Format, PerRow>;
  constexpr size_t kGroup = group_values(kForm), kSub = Packed::kSub;
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
    const auto end_sub = [&](size_t after) __attribute__((always_inline)) {
      const PerRow next = after < end ? Scales::scales(panel, after) : zero;
      const PerRow difference = minus(scale, next);
      scale = next;
      for (size_t t = 0; t < kTokens; ++t) {
        for (size_t i = 0; i < kVectors; ++i) {
          const __m256 prefix = _mm256_castsi256_ps(sums.prefix[t][i]);
          sums.scaled[t][i] = _mm256_fmadd_ps(prefix, difference.v[i], sums.scaled[t][i]);
        }
      }
    };
    for (size_t c = begin; c < end; c += 32) {
      const uint8_t* step = step_at<Packed>(panel, c);
      fetch_ahead<Avx2Fetch, Packed::kStepBytes>(step);
      add_corrections<Format>(c / kSub, inputs, sums.prefix);
      if constexpr (kSub == 32) {
        add_columns<Format, 0, 4, 1, 5>(step, c, inputs, sums.prefix);  // in pairs that share bytes
        add_columns<Format, 2, 6, 3, 7>(step, c, inputs, sums.prefix);
      } else {
        add_columns<Format, 0, 1, 2, 3>(step, c, inputs, sums.prefix);
        end_sub(c + kSub);
        add_corrections<Format>(c / kSub + 1, inputs, sums.prefix);
        add_columns<Format, 4, 5, 6, 7>(step, c, inputs, sums.prefix);
      }
      end_sub(c + 32);
      if constexpr (Packed::Uniform::kHasMin) {
        const PerRow min = Scales::mins(panel, c);
        for (size_t t = 0; t < kTokens; ++t) {
          const __m256 sum = _mm256_set1_ps(inputs[t].row.scaled_sums[c / 32]);
          for (size_t i = 0; i < kVectors; ++i) {
            sums.min_sum[t][i] = _mm256_fmadd_ps(min.v[i], sum, sums.min_sum[t][i]);
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

// Adds a sub-block's sums times its scales.
template <size_t kTokens>
ALWAYS_INLINE void add_totals(const __m256i (&scale)[kVectors], const __m256i (&parts)[kTokens][kVectors],
                              __m256i (&totals)[kTokens][kVectors]) {
  for (size_t t = 0; t < kTokens; ++t) {
    for (size_t i = 0; i < kVectors; ++i) {
      totals[t][i] = _mm256_add_epi32(totals[t][i], _mm256_mullo_epi32(parts[t][i], scale[i]));
    }
  }
}

// What the minimums of a block of 256 come to: `mins(j, i)` has two sub-blocks' for each of eight rows.
template <size_t kSub, class Mins>
ALWAYS_INLINE void subtract_mins(const Mins& mins, const PerRow& scale, const Q8Row& row, size_t block,
                                 PerRow& scaled) {
  constexpr size_t kSubs = 256 / kSub;
  const int16_t* sums = (kSub == 32 ? row.sums32 : row.sums16) + kSubs * block;
  __m256i totals[kVectors] = {};
  for (size_t j = 0; j < kSubs / 2; ++j) {
    int32_t two;
    std::memcpy(&two, sums + 2 * j, sizeof(two));
    for (size_t i = 0; i < kVectors; ++i) {
      totals[i] = _mm256_add_epi32(totals[i], _mm256_madd_epi16(mins(j, i), _mm256_set1_epi32(two)));
    }
  }
  for (size_t i = 0; i < kVectors; ++i) {
    scaled.v[i] = _mm256_fnmadd_ps(_mm256_cvtepi32_ps(totals[i]), scale.v[i], scaled.v[i]);
  }
}

template <In256 Format, ActivationForm kForm, size_t kTokens>
void multiply_direct(const uint8_t* panel, size_t cols, const PanelInput* inputs, float (*out)[kPanelRows]) {
  using Packed = PackedBlock<Format>;
  using Scales = PanelScales<Format, PerRow>;
  constexpr size_t kSubsInStep = 32 / Packed::kSub;
  static_assert(Packed::kValues == group_values(kForm));
  PerRow sums[kTokens] = {};
  for (size_t b = 0; b < cols / Packed::kValues; ++b, panel += Packed::kBytes) {
    __m256i totals[kTokens][kVectors] = {};
    const auto end_sub = [&](size_t sub, const __m256i(&parts)[kTokens][kVectors]) {
      const __m128i all =
          _mm_loadu_si128(reinterpret_cast<const __m128i*>(panel + Packed::kSubScales + kPanelRows * sub));
      const __m256i scale[kVectors] = {_mm256_cvtepi8_epi32(all),
                                       _mm256_cvtepi8_epi32(_mm_srli_si128(all, 8))};
      add_totals(scale, parts, totals);
    };
    for (size_t s = 0; s < Packed::kValues / 32; ++s) {
      const size_t c = Packed::kValues * b + 32 * s, first_sub = b * Packed::kSubs + kSubsInStep * s;
      const uint8_t* step = panel + Packed::kStart + s * Packed::kStepBytes;
      fetch_ahead<Avx2Fetch, Packed::kStepBytes>(step);
      __m256i parts[kTokens][kVectors] = {};
      add_corrections<Format>(first_sub, inputs, parts);
      if constexpr (kSubsInStep == 1) {
        add_columns<Format, 0, 4, 1, 5>(step, c, inputs, parts);  // in pairs that share bytes
        add_columns<Format, 2, 6, 3, 7>(step, c, inputs, parts);
        end_sub(s, parts);
      } else {
        add_columns<Format, 0, 1, 2, 3>(step, c, inputs, parts);
        end_sub(2 * s, parts);
        __m256i others[kTokens][kVectors] = {};
        add_corrections<Format>(first_sub + 1, inputs, others);
        add_columns<Format, 4, 5, 6, 7>(step, c, inputs, others);
        end_sub(2 * s + 1, others);
      }
    }
    const PerRow scale = Scales::block_scales(panel);
    for (size_t t = 0; t < kTokens; ++t) {
      PerRow scaled;
      for (size_t i = 0; i < kVectors; ++i) {
        scaled.v[i] = _mm256_mul_ps(_mm256_cvtepi32_ps(totals[t][i]), scale.v[i]);
      }
      if constexpr (Packed::Uniform::kHasMin) {
        const auto mins = [&](size_t pair, size_t i) {
          return _mm256_cvtepi8_epi16(_mm_loadu_si128(
              reinterpret_cast<const __m128i*>(panel + Packed::kSubMins + 2 * kPanelRows * pair + 16 * i)));
        };
        subtract_mins<Packed::kSub>(mins, Scales::block_min_scales(panel), inputs[t].row, b, scaled);
      }
      const __m256 factor = _mm256_set1_ps(inputs[t].row.scales[b]);
      for (size_t i = 0; i < kVectors; ++i) {
        sums[t].v[i] = _mm256_fmadd_ps(scaled.v[i], factor, sums[t].v[i]);
      }
    }
  }
  for (size_t t = 0; t < kTokens; ++t) sums[t].store(out[t]);
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
    const uint8_t* step = step_at<Packed>(panel, c);
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

// Sixteen columns.
template <class Format, size_t kTokens>
ALWAYS_INLINE void add_opened(const uint8_t* opened, size_t c, const PanelInput* inputs,
                              __m256i (&sums)[kTokens][kVectors]) {
  __m256i codes[kVectors][4];
  for (size_t i = 0; i < kVectors; ++i) {
    for (size_t g = 0; g < 4; ++g) codes[i][g] = load_bytes(opened + 32 * i + 64 * g);
  }
  for (size_t t = 0; t < kTokens; ++t) {
    const int8_t* values = inputs[t].row.values + c;
    for (size_t i = 0; i < kVectors; ++i) {
      const __m256i products =
          Codes<Format>::multiply(codes[i], {values, values + 4, values + 8, values + 12});
      sums[t][i] = _mm256_add_epi32(sums[t][i], products);
    }
  }
}

template <class Format, ActivationForm kForm, size_t kTokens>
requires(!In256<Format>) void multiply_tile(const OpenPanel& panel, size_t cols, const PanelInput* inputs,
                                            float (*out)[kPanelRows]) {
  constexpr size_t kGroup = group_values(kForm), kSub = UniformBlock<Format>::kSub;
  static_assert(kSub == 32 || !UniformBlock<Format>::kHasMin);
  __m256 sums[kTokens][kVectors] = {};
  for (size_t begin = 0; begin < cols; begin += kGroup) {
    const size_t end = begin + kGroup < cols ? begin + kGroup : cols;
    const PerRow start = PerRow::load(panel.starts + kPanelRows * (begin / kGroup));
    __m256i prefixes[kTokens][kVectors];
    __m256 scaled[kTokens][kVectors];
    for (size_t t = 0; t < kTokens; ++t) {
      for (size_t i = 0; i < kVectors; ++i) {
        prefixes[t][i] = _mm256_set1_epi32(kMagicBits);
        scaled[t][i] = start.v[i];
      }
    }
    for (size_t c = begin; c < end; c += kSub) {
      for (size_t i = c; i < c + kSub; i += 16)
        add_opened<Format>(panel.codes + kPanelRows * i, i, inputs, prefixes);
      add_corrections<Format>(c / kSub, inputs, prefixes);
      const PerRow difference = PerRow::load(panel.differences + kPanelRows * (c / kSub));
      for (size_t t = 0; t < kTokens; ++t) {
        for (size_t i = 0; i < kVectors; ++i) {
          const __m256 prefix = _mm256_castsi256_ps(prefixes[t][i]);
          scaled[t][i] = _mm256_fmadd_ps(prefix, difference.v[i], scaled[t][i]);
        }
      }
    }
    for (size_t t = 0; t < kTokens; ++t) {
      const __m256 factor = _mm256_set1_ps(inputs[t].row.scales[begin / kGroup]);
      for (size_t i = 0; i < kVectors; ++i) {
        sums[t][i] = _mm256_fmadd_ps(scaled[t][i], factor, sums[t][i]);
      }
    }
  }
  if constexpr (UniformBlock<Format>::kHasMin) {
    __m256 min_sums[kTokens][kVectors] = {};
    for (size_t b = 0; b < cols / 32; ++b) {
      const PerRow min = PerRow::load(panel.mins + kPanelRows * b);
      for (size_t t = 0; t < kTokens; ++t) {
        const __m256 sum = _mm256_set1_ps(inputs[t].row.scaled_sums[b]);
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

template <In256 Format, ActivationForm kForm, size_t kTokens>
void multiply_tile(const OpenPanel& panel, size_t cols, const PanelInput* inputs, float (*out)[kPanelRows]) {
  constexpr size_t kSub = PackedBlock<Format>::kSub, kSubs = 256 / kSub;
  PerRow sums[kTokens] = {};
  for (size_t b = 0; b < cols / 256; ++b) {
    __m256i totals[kTokens][kVectors] = {};
    for (size_t s = b * kSubs; s < (b + 1) * kSubs; ++s) {
      __m256i parts[kTokens][kVectors] = {};
      for (size_t c = kSub * s; c < kSub * (s + 1); c += 16) {
        add_opened<Format>(panel.codes + kPanelRows * c, c, inputs, parts);
      }
      add_corrections<Format>(s, inputs, parts);
      const uint8_t* factors = reinterpret_cast<const uint8_t*>(panel.sub_factors + kPanelRows * s);
      const __m256i scale[kVectors] = {load_bytes(factors), load_bytes(factors + 32)};
      add_totals(scale, parts, totals);
    }
    const PerRow scale = PerRow::load(panel.scales + kPanelRows * b);
    for (size_t t = 0; t < kTokens; ++t) {
      PerRow scaled;
      for (size_t i = 0; i < kVectors; ++i) {
        scaled.v[i] = _mm256_mul_ps(_mm256_cvtepi32_ps(totals[t][i]), scale.v[i]);
      }
      if constexpr (UniformBlock<Format>::kHasMin) {
        const uint8_t* first = reinterpret_cast<const uint8_t*>(panel.sub_mins + kPanelRows * kSubs * b);
        const auto mins = [&](size_t pair, size_t i) { return load_bytes(first + 64 * pair + 32 * i); };
        subtract_mins<kSub>(mins, PerRow::load(panel.min_scales + kPanelRows * b), inputs[t].row, b, scaled);
      }
      const __m256 factor = _mm256_set1_ps(inputs[t].row.scales[b]);
      for (size_t i = 0; i < kVectors; ++i) {
        sums[t].v[i] = _mm256_fmadd_ps(scaled.v[i], factor, sums[t].v[i]);
      }
    }
  }
  for (size_t t = 0; t < kTokens; ++t) sums[t].store(out[t]);
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
      .excess = Codes<Format>::kHasCorrection ? Codes<Format>::kLess * Codes<Format>::kTimes : 0,
      .outliers = kOutlierKernels<Format>,
  };
  multiply_panels(args, kKernels);
}

}  // namespace

void use_avx2(CpuKernels& kernels) {
  kernels.name = "avx2";
  use_avx2_floats(kernels);
  kernels.attend = attend_avx2;
#define QUIRE_FORMAT(dtype, Format, activation)                                                      \
  kernels.matmul[size_t(DType::dtype)] = matmul<Panels<format::Format>, ActivationForm::activation>; \
  kernels.panels[size_t(DType::dtype)] = panel_format<format::Format>();
#include "backend/cpu/matmul/book_formats.inc"
#include "backend/cpu/matmul/quantized_formats.inc"
#undef QUIRE_FORMAT
}

}  // namespace quire

#endif
