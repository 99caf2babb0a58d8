// Matrix products by `vpdpbusd`: a vector holds four columns of all sixteen rows, and the same four columns of a token
// are broadcast. It multiplies unsigned by signed, so codes that can be negative are taken 128 above what they are worth,
// and minus 128 times the sum of the activations is added once per sub-block. Integer sums are exact on every way there.
//
// Compiled for AVX-512 with VNNI, so nothing here may be inlined elsewhere.
#if defined(__x86_64__)

#include <immintrin.h>

#include "backend/cpu/avx512/avx512_kernels.h"
#include "backend/cpu/avx512/panel_reader.h"
#include "backend/cpu/matmul/stream_fetch.h"

namespace quire {
namespace {

constexpr size_t kDirectTokens = 4;  // up to so many tokens, codes go from memory into the product
constexpr size_t kTileTokens = 8;    // 8 integer and 16 float sums, 4 operands

// Codes less this are what they are worth.
template <class Format>
constexpr int kLess = In256<Format>&& UniformBlock<Format>::kHasMin ? 0 : 128;

// The sum so far and the products of four columns.
ALWAYS_INLINE __m512i add_products(__m512i sum, __m512i codes, const int8_t* values) {
  int32_t four;
  std::memcpy(&four, values, sizeof(four));
  return _mm512_dpbusd_epi32(sum, codes, _mm512_set1_epi32(four));
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

// What a sub-block's sum begins with.
template <bool kIsCorrected, size_t kTokens>
ALWAYS_INLINE void begin_sub(size_t sub, const PanelInput* inputs, __m512i (&parts)[kTokens]) {
  for (size_t t = 0; t < kTokens; ++t) {
    parts[t] = kIsCorrected ? _mm512_set1_epi32(inputs[t].corrections[sub]) : _mm512_setzero_si512();
  }
}

template <class Format, size_t g, size_t kTokens>
ALWAYS_INLINE void add_columns(const uint8_t* step, size_t c, const PanelInput* inputs,
                               __m512i (&parts)[kTokens]) {
  const __m512i codes = Codes<Format, kLess<Format>>::template read<g>(step);
  for (size_t t = 0; t < kTokens; ++t) {
    parts[t] = add_products(parts[t], codes, inputs[t].row.values + c + 4 * g);
  }
}

// 32 columns from c on; `halfway` is called after sixteen.
template <class Format, size_t kTokens, class Halfway>
ALWAYS_INLINE void add_step(const uint8_t* step, size_t c, const PanelInput* inputs,
                            __m512i (&parts)[kTokens], const Halfway& halfway) {
  fetch_ahead<NearFetch, PackedBlock<Format>::kStepBytes>(step);
  add_columns<Format, 0>(step, c, inputs, parts);
  add_columns<Format, 1>(step, c, inputs, parts);
  add_columns<Format, 2>(step, c, inputs, parts);
  add_columns<Format, 3>(step, c, inputs, parts);
  halfway();
  add_columns<Format, 4>(step, c, inputs, parts);
  add_columns<Format, 5>(step, c, inputs, parts);
  add_columns<Format, 6>(step, c, inputs, parts);
  add_columns<Format, 7>(step, c, inputs, parts);
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
    for (size_t t = 0; t < kTokens; ++t) {
      sums.prefix[t] = _mm512_set1_epi32(kMagicBits);
      sums.scaled[t] = times(scale, -kMagic).v[0];
    }
    const auto end_sub = [&](size_t after) __attribute__((always_inline)) {
      const PerRow next = after < end ? Scales::scales(panel, after) : zero;
      const PerRow difference = minus(scale, next);
      scale = next;
      for (size_t t = 0; t < kTokens; ++t) {
        sums.prefix[t] = _mm512_add_epi32(sums.prefix[t], sums.part[t]);
        sums.scaled[t] =
            _mm512_fmadd_ps(_mm512_castsi512_ps(sums.prefix[t]), difference.v[0], sums.scaled[t]);
      }
    };
    for (size_t c = begin; c < end; c += 32) {
      if (Packed::kValues == 32 || c % Packed::kValues == 0)
        fetch_ahead<NearFetch, Packed::kStart>(block_at<Packed>(panel, c));
      begin_sub<true>(c / kSub, inputs, sums.part);
      add_step<Format>(
          step_at<Packed>(panel, c), c, inputs, sums.part, [&]() __attribute__((always_inline)) {
            if constexpr (kSub == 32) return;
            end_sub(c + kSub);
            begin_sub<true>(c / kSub + 1, inputs, sums.part);
          });
      end_sub(c + 32);
      if constexpr (Packed::Uniform::kHasMin) {
        const PerRow min = Scales::mins(panel, c);
        for (size_t t = 0; t < kTokens; ++t) {
          const __m512 sum = _mm512_set1_ps(inputs[t].row.scaled_sums[c / 32]);
          sums.min_sum[t] = _mm512_fmadd_ps(min.v[0], sum, sums.min_sum[t]);
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

// What the minimums of a block of 256 come to: `mins` has two sub-blocks' for each row at a time.
template <size_t kSub, class Mins>
ALWAYS_INLINE __m512i min_total(const Mins& mins, const Q8Row& row, size_t block) {
  constexpr size_t kSubs = 256 / kSub;
  const int16_t* sums = (kSub == 32 ? row.sums32 : row.sums16) + kSubs * block;
  __m512i total = _mm512_setzero_si512();
#pragma GCC unroll 8
  for (size_t j = 0; j < kSubs / 2; ++j) {
    int32_t two;
    std::memcpy(&two, sums + 2 * j, sizeof(two));
    total = _mm512_dpwssd_epi32(total, mins(j), _mm512_set1_epi32(two));
  }
  return total;
}

template <In256 Format, ActivationForm kForm, size_t kTokens>
void multiply_direct(const uint8_t* panel, size_t cols, const PanelInput* inputs, float (*out)[kPanelRows]) {
  using Packed = PackedBlock<Format>;
  using Scales = PanelScales<Format, PerRow>;
  constexpr size_t kSubsInStep = 32 / Packed::kSub;
  constexpr bool kIsCorrected = kLess<Format> != 0;
  static_assert(Packed::kValues == group_values(kForm));
  __m512 sums[kTokens] = {};
  for (size_t b = 0; b < cols / Packed::kValues; ++b, panel += Packed::kBytes) {
    fetch_ahead<NearFetch, Packed::kStart>(panel);
    __m512i parts[kTokens], totals[kTokens] = {};
    const auto end_sub = [&](size_t sub) {
      const uint8_t* scales = panel + Packed::kSubScales + kPanelRows * sub;
      const __m512i scale = _mm512_cvtepi8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(scales)));
      for (size_t t = 0; t < kTokens; ++t) {
        totals[t] = _mm512_add_epi32(totals[t], _mm512_mullo_epi32(parts[t], scale));
      }
    };
    for (size_t s = 0; s < Packed::kValues / 32; ++s) {
      const size_t first_sub = b * Packed::kSubs + kSubsInStep * s;
      begin_sub<kIsCorrected>(first_sub, inputs, parts);
      add_step<Format>(panel + Packed::kStart + s * Packed::kStepBytes, Packed::kValues * b + 32 * s, inputs,
                       parts, [&] {
                         if constexpr (kSubsInStep == 1) return;
                         end_sub(2 * s);
                         begin_sub<kIsCorrected>(first_sub + 1, inputs, parts);
                       });
      end_sub(kSubsInStep * (s + 1) - 1);
    }
    const PerRow scale = Scales::block_scales(panel);
    for (size_t t = 0; t < kTokens; ++t) {
      __m512 scaled = _mm512_mul_ps(_mm512_cvtepi32_ps(totals[t]), scale.v[0]);
      if constexpr (Packed::Uniform::kHasMin) {
        const auto mins = [&](size_t pair) {
          return _mm512_cvtepi8_epi16(_mm256_loadu_si256(
              reinterpret_cast<const __m256i*>(panel + Packed::kSubMins + 2 * kPanelRows * pair)));
        };
        const __m512i total = min_total<Packed::kSub>(mins, inputs[t].row, b);
        scaled = _mm512_fnmadd_ps(_mm512_cvtepi32_ps(total), Scales::block_min_scales(panel).v[0], scaled);
      }
      sums[t] = _mm512_fmadd_ps(scaled, _mm512_set1_ps(inputs[t].row.scales[b]), sums[t]);
    }
  }
  for (size_t t = 0; t < kTokens; ++t) _mm512_storeu_ps(out[t], sums[t]);
}

// ---- many tokens: a panel is unpacked once -------------------------------------------------------------------------

// Sixteen columns.
template <size_t kTokens>
ALWAYS_INLINE void add_opened(const uint8_t* opened, size_t c, const PanelInput* inputs,
                              __m512i (&sums)[kTokens]) {
  const __m512i codes[4] = {load_bytes(opened), load_bytes(opened + 64), load_bytes(opened + 128),
                            load_bytes(opened + 192)};
  for (size_t t = 0; t < kTokens; ++t) {
    const int8_t* values = inputs[t].row.values + c;
    __m512i sum = add_products(sums[t], codes[0], values);
    sum = add_products(sum, codes[1], values + 4);
    sum = add_products(sum, codes[2], values + 8);
    sums[t] = add_products(sum, codes[3], values + 12);
  }
}

// How codes were packed no longer matters here.
template <size_t kSub, ActivationForm kForm, bool kHasMin, size_t kTokens>
requires(kForm != ActivationForm::q8_256) void multiply_tile(const OpenPanel& panel, size_t cols,
                                                             const PanelInput* inputs,
                                                             float (*out)[kPanelRows]) {
  constexpr size_t kGroup = group_values(kForm);
  static_assert(kSub == 32 || !kHasMin);
  __m512 sums[kTokens] = {};
  for (size_t begin = 0; begin < cols; begin += kGroup) {
    const size_t end = begin + kGroup < cols ? begin + kGroup : cols;
    const PerRow start = PerRow::load(panel.starts + kPanelRows * (begin / kGroup));
    __m512i prefixes[kTokens];
    __m512 scaled[kTokens];
    for (size_t t = 0; t < kTokens; ++t) {
      prefixes[t] = _mm512_set1_epi32(kMagicBits);
      scaled[t] = start.v[0];
    }
    for (size_t c = begin; c < end; c += kSub) {
      add_opened(panel.codes + kPanelRows * c, c, inputs, prefixes);
      if constexpr (kSub == 32) add_opened(panel.codes + kPanelRows * (c + 16), c + 16, inputs, prefixes);
      const PerRow difference = PerRow::load(panel.differences + kPanelRows * (c / kSub));
      for (size_t t = 0; t < kTokens; ++t) {
        prefixes[t] = _mm512_add_epi32(prefixes[t], _mm512_set1_epi32(inputs[t].corrections[c / kSub]));
        scaled[t] = _mm512_fmadd_ps(_mm512_castsi512_ps(prefixes[t]), difference.v[0], scaled[t]);
      }
    }
    for (size_t t = 0; t < kTokens; ++t) {
      const __m512 factor = _mm512_set1_ps(inputs[t].row.scales[begin / kGroup]);
      sums[t] = _mm512_fmadd_ps(scaled[t], factor, sums[t]);
    }
  }
  if constexpr (kHasMin) {
    __m512 min_sums[kTokens] = {};
    for (size_t b = 0; b < cols / 32; ++b) {
      const PerRow min = PerRow::load(panel.mins + kPanelRows * b);
      for (size_t t = 0; t < kTokens; ++t) {
        min_sums[t] = _mm512_fmadd_ps(min.v[0], _mm512_set1_ps(inputs[t].row.scaled_sums[b]), min_sums[t]);
      }
    }
    for (size_t t = 0; t < kTokens; ++t) sums[t] = _mm512_sub_ps(sums[t], min_sums[t]);
  }
  for (size_t t = 0; t < kTokens; ++t) _mm512_storeu_ps(out[t], sums[t]);
}

template <size_t kSub, ActivationForm kForm, bool kHasMin, size_t kTokens>
requires(kForm == ActivationForm::q8_256) void multiply_tile(const OpenPanel& panel, size_t cols,
                                                             const PanelInput* inputs,
                                                             float (*out)[kPanelRows]) {
  constexpr size_t kSubs = 256 / kSub;
  constexpr bool kIsCorrected = !kHasMin;  // codes with a minimum are never negative
  __m512 sums[kTokens] = {};
  for (size_t b = 0; b < cols / 256; ++b) {
    __m512i totals[kTokens] = {};
    for (size_t s = b * kSubs; s < (b + 1) * kSubs; ++s) {
      __m512i parts[kTokens];
      begin_sub<kIsCorrected>(s, inputs, parts);
      for (size_t c = kSub * s; c < kSub * (s + 1); c += 16) {
        add_opened(panel.codes + kPanelRows * c, c, inputs, parts);
      }
      const __m512i scale = _mm512_loadu_si512(panel.sub_factors + kPanelRows * s);
      for (size_t t = 0; t < kTokens; ++t) {
        totals[t] = _mm512_add_epi32(totals[t], _mm512_mullo_epi32(parts[t], scale));
      }
    }
    const PerRow scale = PerRow::load(panel.scales + kPanelRows * b);
    for (size_t t = 0; t < kTokens; ++t) {
      __m512 scaled = _mm512_mul_ps(_mm512_cvtepi32_ps(totals[t]), scale.v[0]);
      if constexpr (kHasMin) {
        const int16_t* first = panel.sub_mins + kPanelRows * kSubs * b;
        const auto mins = [&](size_t pair) { return _mm512_loadu_si512(first + 2 * kPanelRows * pair); };
        const __m512i total = min_total<kSub>(mins, inputs[t].row, b);
        const PerRow min_scale = PerRow::load(panel.min_scales + kPanelRows * b);
        scaled = _mm512_fnmadd_ps(_mm512_cvtepi32_ps(total), min_scale.v[0], scaled);
      }
      sums[t] = _mm512_fmadd_ps(scaled, _mm512_set1_ps(inputs[t].row.scales[b]), sums[t]);
    }
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
      .open = open_panel<Format, kForm, kLess<Format>>,
      .tiles = {multiply_tile<kSub, kForm, kHasMin, 1>, multiply_tile<kSub, kForm, kHasMin, 2>,
                multiply_tile<kSub, kForm, kHasMin, 3>, multiply_tile<kSub, kForm, kHasMin, 4>,
                multiply_tile<kSub, kForm, kHasMin, 5>, multiply_tile<kSub, kForm, kHasMin, 6>,
                multiply_tile<kSub, kForm, kHasMin, 7>, multiply_tile<kSub, kForm, kHasMin, 8>},
      .excess = kLess<Format>,
      .outliers = kOutlierKernels<Format>,
  };
  multiply_panels(args, kKernels);
}

#define QUIRE_FORMAT(dtype, Format, activation) \
  template void matmul_vnni<format::Format, ActivationForm::activation>(const MatmulArgs&);
#include "backend/cpu/matmul/quantized_formats.inc"
#undef QUIRE_FORMAT

void use_avx512(CpuKernels& kernels) {
  kernels.name = "avx512";
  use_avx512_floats(kernels);
  use_avx512_rows(kernels);
  kernels.attend = attend_avx512;
#define QUIRE_FORMAT(dtype, Format, activation)                                                           \
  kernels.matmul[size_t(DType::dtype)] = matmul_vnni<Panels<format::Format>, ActivationForm::activation>; \
  kernels.panels[size_t(DType::dtype)] = panel_format<format::Format>();
#include "backend/cpu/matmul/book_formats.inc"
#include "backend/cpu/matmul/quantized_formats.inc"
#undef QUIRE_FORMAT
}

}  // namespace quire

#endif
