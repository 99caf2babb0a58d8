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
#include "backend/cpu/panel_matmul.h"
#include "backend/cpu/panel_scales.h"

namespace quire {
namespace {

constexpr size_t kVectors = kPanelRows / 8;  // of eight rows
constexpr size_t kDirectTokens = 2;          // up to so many tokens, codes go from memory into the product
constexpr size_t kTileTokens = 4;        // 16 rows x 4 tokens: 8 sums in 16 bits, 3 operands; the rest spills
constexpr size_t kPrefetchBytes = 4096;  // ahead of the codes that are read from memory

ALWAYS_INLINE __m256i load_bytes(const uint8_t* bytes) {
  return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(bytes));
}

// A float per row of a panel.
struct PerRow {
  __m256 v[kVectors];

  static ALWAYS_INLINE PerRow load(const float* values) {
    return {{_mm256_loadu_ps(values), _mm256_loadu_ps(values + 8)}};
  }
  ALWAYS_INLINE void store(float* out) const {
    _mm256_storeu_ps(out, v[0]);
    _mm256_storeu_ps(out + 8, v[1]);
  }

  static ALWAYS_INLINE PerRow load_f16(const uint8_t* bytes) {
    const __m256i all = load_bytes(bytes);
    return {
        {_mm256_cvtph_ps(_mm256_castsi256_si128(all)), _mm256_cvtph_ps(_mm256_extracti128_si256(all, 1))}};
  }

  static ALWAYS_INLINE PerRow load_i8(const uint8_t* bytes) {
    const __m128i all = _mm_loadu_si128(reinterpret_cast<const __m128i*>(bytes));
    return {{_mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(all)),
             _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_srli_si128(all, 8)))}};
  }

  static ALWAYS_INLINE PerRow load_exponents(const uint8_t* bytes) {
    const __m128i all = _mm_loadu_si128(reinterpret_cast<const __m128i*>(bytes));
    return {
        {half_powers(_mm256_cvtepu8_epi32(all)), half_powers(_mm256_cvtepu8_epi32(_mm_srli_si128(all, 8)))}};
  }
  static ALWAYS_INLINE __m256 half_powers(__m256i exponents) {
    const __m256i normal = _mm256_slli_epi32(_mm256_sub_epi32(exponents, _mm256_set1_epi32(1)), 23);
    const __m256i tiny = _mm256_sllv_epi32(_mm256_set1_epi32(0x00200000), exponents);
    const __m256i is_tiny = _mm256_cmpgt_epi32(_mm256_set1_epi32(2), exponents);
    return _mm256_castsi256_ps(_mm256_blendv_epi8(normal, tiny, is_tiny));
  }
};

ALWAYS_INLINE __m256i broadcast4(const int8_t* values) {
  int32_t four;
  std::memcpy(&four, values, sizeof(four));
  return _mm256_set1_epi32(four);
}

// How a format's codes are multiplied.
template <class Format>
struct Codes {
  using Packed = PackedBlock<Format>;
  static constexpr Coding kCodes = Packed::kCodes;
  static constexpr bool kIsMxfp4 = std::is_same_v<Format, format::Mxfp4>;
  static constexpr bool kIsSigned = kCodes == Coding::byte || (kCodes == Coding::table && !kIsMxfp4);
  static constexpr int kLess = kCodes == Coding::widened ? 8 : kIsMxfp4 ? 12 : -kLowest<Format>;
  static constexpr int kTimes = kCodes == Coding::widened ? 16 : 1;  // what the products are multiplied with
  // How many products of a vector are added in 16 bits: 4 * 2 * 31 * 127 = 31496, 2 * 2 * 63 * 127 = 32004.
  static constexpr size_t kDeep = kIsSigned ? 1 : kCodes == Coding::six ? 2 : 4;
  static constexpr bool kHasCorrection = !kIsSigned && kLess != 0;
  static constexpr MovedTable kTable = moved_table<Format>(kIsSigned ? 0 : kLess);

  template <int kLeft>
  static ALWAYS_INLINE __m256i shift(__m256i bytes) {  // bits that cross bytes are masked afterwards
    if constexpr (kLeft >= 0) {
      return _mm256_slli_epi16(bytes, kLeft);
    } else {
      return _mm256_srli_epi16(bytes, -kLeft);
    }
  }

  // Columns 4 g to 4 g + 3 of a step of 32, rows 8 i to 8 i + 7.
  template <size_t g>
  static ALWAYS_INLINE __m256i read(const uint8_t* step, size_t i) {
    if constexpr (kCodes == Coding::byte) {
      return load_bytes(step + g * 64 + 32 * i);
    } else {
      __m256i halves = load_bytes(step + g % 4 * 64 + 32 * i);
      if constexpr (kCodes == Coding::widened)
        halves = _mm256_xor_si256(halves, _mm256_set1_epi8(char(0x88)));
      const __m256i low = _mm256_and_si256(shift < g < 4 ? 0 : -4 > (halves), _mm256_set1_epi8(15));
      if constexpr (kCodes == Coding::widened) {
        return low;
      } else if constexpr (kCodes == Coding::table) {
        const __m128i table = _mm_loadu_si128(reinterpret_cast<const __m128i*>(kTable.bytes));
        return _mm256_shuffle_epi8(_mm256_broadcastsi128_si256(table), low);
      } else if constexpr (kCodes == Coding::five) {
        const __m256i high = shift<4 - int(g)>(load_bytes(step + 256 + 32 * i));
        return _mm256_or_si256(low, _mm256_and_si256(high, _mm256_set1_epi8(16)));
      } else {
        const __m256i high = shift<4 - 2 * int(g % 4)>(load_bytes(step + 256 + g / 4 * 64 + 32 * i));
        return _mm256_or_si256(low, _mm256_and_si256(high, _mm256_set1_epi8(48)));
      }
    }
  }

  // The sums over sixteen columns: `codes` are those at four places of four, `values` the same of a token.
  static ALWAYS_INLINE __m256i multiply(const __m256i (&codes)[4], const int8_t* const (&values)[4]) {
    const __m256i first = pairs(codes[0], values[0]), second = pairs(codes[1], values[1]);
    const __m256i third = pairs(codes[2], values[2]), fourth = pairs(codes[3], values[3]);
    if constexpr (kDeep == 1) {
      return _mm256_add_epi32(_mm256_add_epi32(widen(first), widen(second)),
                              _mm256_add_epi32(widen(third), widen(fourth)));
    } else {
      const __m256i low = _mm256_add_epi16(first, second), high = _mm256_add_epi16(third, fourth);
      if constexpr (kDeep == 2) return _mm256_add_epi32(widen(low), widen(high));
      return widen(_mm256_add_epi16(low, high));
    }
  }

 private:
  static ALWAYS_INLINE __m256i pairs(__m256i codes, const int8_t* four) {
    const __m256i values = broadcast4(four);
    if constexpr (kIsSigned) {
      return _mm256_maddubs_epi16(_mm256_abs_epi8(codes), _mm256_sign_epi8(values, codes));
    } else {
      return _mm256_maddubs_epi16(codes, values);
    }
  }
  static ALWAYS_INLINE __m256i widen(__m256i sums) {
    return _mm256_madd_epi16(sums, _mm256_set1_epi16(kTimes));
  }
};

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
