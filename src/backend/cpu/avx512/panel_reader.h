#pragma once

#include <immintrin.h>

#include "backend/cpu/matmul/panel_scales.h"

// How packed panels become vectors of codes and scales. Each file of kernels is compiled for its own instruction set, so
// each has its own copy of all this.

namespace quire {
namespace {

ALWAYS_INLINE __m512i load_bytes(const uint8_t* bytes) {
  return _mm512_loadu_si512(bytes);
}

ALWAYS_INLINE __m512i every_byte(int byte) {
  return _mm512_set1_epi8(char(byte));
}

// A float per row of a panel.
struct PerRow {
  __m512 v[1];

  static ALWAYS_INLINE PerRow load(const float* values) { return {{_mm512_loadu_ps(values)}}; }
  ALWAYS_INLINE void store(float* out) const { _mm512_storeu_ps(out, v[0]); }
  ALWAYS_INLINE void add(const PerRow& rows, float times) {
    v[0] = _mm512_fmadd_ps(rows.v[0], _mm512_set1_ps(times), v[0]);
  }

  static ALWAYS_INLINE PerRow load_f16(const uint8_t* bytes) {
    return {{_mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(bytes)))}};
  }

  static ALWAYS_INLINE PerRow load_i8(const uint8_t* bytes) {
    const __m128i all = _mm_loadu_si128(reinterpret_cast<const __m128i*>(bytes));
    return {{_mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(all))}};
  }

  static ALWAYS_INLINE PerRow load_i8_of_pairs(const uint8_t* bytes, size_t which) {
    const __m256i pairs = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(bytes));
    const __m256i one = _mm256_srai_epi16(which == 0 ? _mm256_slli_epi16(pairs, 8) : pairs, 8);
    return {{_mm512_cvtepi32_ps(_mm512_cvtepi16_epi32(one))}};
  }

  static ALWAYS_INLINE PerRow load_e4m3(const uint8_t* bytes) {
    const __m128i all = _mm_loadu_si128(reinterpret_cast<const __m128i*>(bytes));
    return {{_mm512_cvtph_ps(_mm256_slli_epi16(_mm256_cvtepu8_epi16(all), 7))}};
  }

  static ALWAYS_INLINE PerRow load_exponents(const uint8_t* bytes) {
    const __m512i exponents = _mm512_cvtepu8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(bytes)));
    const __m512i normal = _mm512_slli_epi32(_mm512_sub_epi32(exponents, _mm512_set1_epi32(1)), 23);
    const __m512i tiny = _mm512_sllv_epi32(_mm512_set1_epi32(0x00200000), exponents);
    const __mmask16 is_tiny = _mm512_cmplt_epu32_mask(exponents, _mm512_set1_epi32(2));
    return {{_mm512_castsi512_ps(_mm512_mask_mov_epi32(normal, is_tiny, tiny))}};
  }
};

// What a step of 32 columns holds. A code less kLess is what it is worth.
template <class Format, int kLess>
struct Codes {
  using Packed = PackedBlock<Format>;
  static constexpr Coding kCodes = Packed::kCodes;
  static constexpr MovedTable kTable = moved_table<Format>(kLess);

  template <int kLeft>
  static ALWAYS_INLINE __m512i shift(__m512i bytes) {  // bits that cross bytes are masked afterwards
    if constexpr (kLeft >= 0) {
      return _mm512_slli_epi16(bytes, kLeft);
    } else {
      return _mm512_srli_epi16(bytes, -kLeft);
    }
  }

  static ALWAYS_INLINE __m512i moved(__m512i codes, int more) {
    return more == 0 ? codes : _mm512_add_epi8(codes, every_byte(more));
  }

  // Columns 4 g to 4 g + 3 of a step of 32.
  template <size_t g>
  static ALWAYS_INLINE __m512i read(const uint8_t* step) {
    if constexpr (kCodes == Coding::byte) {
      return _mm512_xor_si512(load_bytes(step + g * 64), every_byte(kLess));
    } else {
      const __m512i halves = load_bytes(step + g % 4 * 64);
      if constexpr (kCodes == Coding::widened) {
        constexpr int kAndXor = (0xf0 & 0xcc) ^ 0xaa;  // (a & b) ^ c
        return _mm512_ternarylogic_epi32(shift < g < 4 ? 4 : 0 > (halves), every_byte(0xf0),
                                         every_byte(kLess), kAndXor);
      } else {
        const __m512i low = _mm512_and_si512(shift < g < 4 ? 0 : -4 > (halves), every_byte(15));
        if constexpr (kCodes == Coding::four) {
          return moved(low, kLess);
        } else if constexpr (kCodes == Coding::table) {
          const __m128i table = _mm_loadu_si128(reinterpret_cast<const __m128i*>(kTable.bytes));
          return _mm512_shuffle_epi8(_mm512_broadcast_i32x4(table), low);
        } else {
          constexpr bool kIsFive = kCodes == Coding::five;
          const __m512i bits = load_bytes(step + 256 + (kIsFive ? 0 : g / 4 * 64));
          const __m512i high = shift<(kIsFive ? 4 - int(g) : 4 - 2 * int(g % 4))>(bits);
          const __m512i code = _mm512_or_si512(low, _mm512_and_si512(high, every_byte(kIsFive ? 16 : 48)));
          return moved(code, kLess + kLowest<Format>);
        }
      }
    }
  }
};

template <class Format, int kLess, size_t g>
ALWAYS_INLINE void open_columns(const uint8_t* step, uint8_t* codes) {
  _mm512_storeu_si512(codes + 64 * g, Codes<Format, kLess>::template read<g>(step));
}

template <class Format, ActivationForm kForm, int kLess>
void open_panel(const uint8_t* panel, size_t cols, const OpenPanel& out) {
  using Packed = PackedBlock<Format>;
  constexpr size_t kGroup = group_values(kForm);
  for (size_t c = 0; c < cols; c += 32) {
    const uint8_t* step = step_at<Packed>(panel, c);
    uint8_t* codes = out.codes + kPanelRows * c;
    open_columns<Format, kLess, 0>(step, codes);
    open_columns<Format, kLess, 1>(step, codes);
    open_columns<Format, kLess, 2>(step, codes);
    open_columns<Format, kLess, 3>(step, codes);
    open_columns<Format, kLess, 4>(step, codes);
    open_columns<Format, kLess, 5>(step, codes);
    open_columns<Format, kLess, 6>(step, codes);
    open_columns<Format, kLess, 7>(step, codes);
  }
  PanelScales<Format, PerRow>::open(panel, cols, kGroup, out);
}

template <class Format>
struct Columns {
  using Packed = PackedBlock<Format>;
  using Read = Codes<Format, 0>;
  // Whether the place of a column need not be known before it is read.
  static constexpr bool kFindsPlaces = Packed::kCodes == Coding::four || Packed::kCodes == Coding::six;
  static constexpr size_t kMany = kFindsPlaces ? kOutlierSpan * 2 / 5 : kOutlierSpan / 5;
  using Scales = ColumnScales<Format, PerRow>;

  static ALWAYS_INLINE void store(__m512i code, const Scales& scales, float* out) {
    const __m512 number = _mm512_cvtepi32_ps(code);
    if constexpr (Packed::Uniform::kHasMin) {
      _mm512_storeu_ps(out, _mm512_fmsub_ps(number, scales.scale.v[0], scales.min.v[0]));
    } else {
      _mm512_storeu_ps(out, _mm512_mul_ps(number, scales.scale.v[0]));
    }
  }

  template <size_t g>
  static ALWAYS_INLINE void read(const uint8_t* step, size_t place, const Scales& scales, float* out) {
    const __m128i to_top = _mm_cvtsi32_si128(24 - 8 * int(place));
    const __m512i four = Read::template read<g>(step);
    store(_mm512_srai_epi32(_mm512_sll_epi32(four, to_top), 24), scales, out);
  }

  // A column of a step of 32: its bits are moved to the bottom of each row's 32, without a branch on where they are.
  static ALWAYS_INLINE void read_any(const uint8_t* step, size_t column, const Scales& scales,
                                     float* out) requires kFindsPlaces {
    const size_t g = column / 4, place = 8 * (column % 4);
    const auto bits = [](const uint8_t* bytes, size_t from, int mask) __attribute__((always_inline)) {
      return _mm512_and_si512(_mm512_srl_epi32(load_bytes(bytes), _mm_cvtsi32_si128(int(from))),
                              _mm512_set1_epi32(mask));
    };
    __m512i code = bits(step + g % 4 * 64, place + g / 4 * 4, 15);
    if constexpr (Packed::kCodes == Coding::six) {
      const __m512i high = bits(step + 256 + g / 4 * 64, place + g % 4 * 2, 3);
      code = _mm512_add_epi32(_mm512_or_si512(code, _mm512_slli_epi32(high, 4)),
                              _mm512_set1_epi32(kLowest<Format>));
    }
    store(code, scales, out);
  }

  // Where a column of a step of 32 is, for any panel.
  static constexpr bool kIsPlain =
      kFindsPlaces || Packed::kCodes == Coding::widened || Packed::kCodes == Coding::byte;
  struct Place {
    size_t line;
    __m512i shift;
    size_t high_line = 0;  // of codes of six bits: where the upper two are
    __m512i high_shift = _mm512_setzero_si512();
  };
  static ALWAYS_INLINE Place place_of(size_t column) requires kIsPlain {
    const size_t g = column / 4;
    const int bit = 8 * int(column % 4), nibble = bit + int(g / 4) * 4;
    if constexpr (Packed::kCodes == Coding::byte) {
      return {.line = g * 64, .shift = _mm512_set1_epi32(24 - bit)};
    } else if constexpr (Packed::kCodes == Coding::widened) {
      return {.line = g % 4 * 64, .shift = _mm512_set1_epi32(28 - nibble)};
    } else {
      return {.line = g % 4 * 64,
              .shift = _mm512_set1_epi32(nibble),
              .high_line = 256 + g / 4 * 64,
              .high_shift = _mm512_set1_epi32(bit + int(g % 4) * 2)};
    }
  }

  // The weights there, by row.
  static ALWAYS_INLINE __m512 weights_at(const uint8_t* step, const Place& place,
                                         const Scales& scales) requires kIsPlain {
    __m512i code;
    if constexpr (Packed::kCodes == Coding::byte || Packed::kCodes == Coding::widened) {
      code = _mm512_srai_epi32(_mm512_sllv_epi32(load_bytes(step + place.line), place.shift), 24);
      if constexpr (Packed::kCodes == Coding::widened) code = _mm512_and_si512(code, _mm512_set1_epi32(~15));
    } else {
      code = _mm512_and_si512(_mm512_srlv_epi32(load_bytes(step + place.line), place.shift),
                              _mm512_set1_epi32(15));
      if constexpr (Packed::kCodes == Coding::six) {
        const __m512i high = _mm512_srlv_epi32(load_bytes(step + place.high_line), place.high_shift);
        code = _mm512_or_si512(code, _mm512_slli_epi32(_mm512_and_si512(high, _mm512_set1_epi32(3)), 4));
        code = _mm512_add_epi32(code, _mm512_set1_epi32(kLowest<Format>));
      }
    }
    const __m512 number = _mm512_cvtepi32_ps(code);
    if constexpr (Packed::Uniform::kHasMin) {
      return _mm512_fmsub_ps(number, scales.scale.v[0], scales.min.v[0]);
    } else {
      return _mm512_mul_ps(number, scales.scale.v[0]);
    }
  }

  template <size_t g>
  static ALWAYS_INLINE void read_four(const uint8_t* step, const Scales& scales, float* out) {
    const __m512i four = Read::template read<g>(step);
    store(_mm512_srai_epi32(_mm512_slli_epi32(four, 24), 24), scales, out);
    store(_mm512_srai_epi32(_mm512_slli_epi32(four, 16), 24), scales, out + kPanelRows);
    store(_mm512_srai_epi32(_mm512_slli_epi32(four, 8), 24), scales, out + 2 * kPanelRows);
    store(_mm512_srai_epi32(four, 24), scales, out + 3 * kPanelRows);
  }
};

template <class Format>
struct OutliersByColumn {
  using Packed = PackedBlock<Format>;
  using Read = Columns<Format>;

  template <size_t kPanels>
  static void add(const OutlierProducts& to, size_t first, const OutlierUse* uses, size_t count) {
    typename Read::Scales scales[kPanels] = {};
    size_t sub_end = 0;
    for (const OutlierUse* end = uses + count; uses != end; ++uses) {
      const size_t column = first + uses->col;
      if (column >= sub_end) {
        const size_t begin = column / Packed::kSub * Packed::kSub;
#pragma GCC unroll 4
        for (size_t p = 0; p < kPanels; ++p)
          scales[p] = Read::Scales::at(to.panel + p * to.panel_bytes, begin);
        sub_end = begin + Packed::kSub;
      }
      const uint8_t* step = step_at<Packed>(to.panel, column);
      const typename Read::Place place = Read::place_of(column % 32);
      const __m512 value = _mm512_set1_ps(uses->value);
      float* out = to.out + uses->token * to.stride;
#pragma GCC unroll 4
      for (size_t p = 0; p < kPanels; ++p, step += to.panel_bytes, out += kPanelRows) {
        const __m512 weights = Read::weights_at(step, place, scales[p]);
        _mm512_storeu_ps(out, _mm512_fmadd_ps(weights, value, _mm512_loadu_ps(out)));
      }
    }
  }

  static void add_any(const OutlierProducts& to, size_t first, const OutlierUse* uses, size_t count) {
    static_assert(kOutlierPanels == 4);
    switch (to.panels) {
      case 1:
        return add<1>(to, first, uses, count);
      case 2:
        return add<2>(to, first, uses, count);
      case 3:
        return add<3>(to, first, uses, count);
      default:
        return add<4>(to, first, uses, count);
    }
  }
};

template <class Format>
constexpr OutlierKernels outlier_kernels() {
  OutlierKernels kernels = {OutlierColumns<Columns<Format>>::read, add_outlier_columns<PerRow>};
  if constexpr (Columns<Format>::kIsPlain) kernels.add_by_column = OutliersByColumn<Format>::add_any;
  return kernels;
}
template <class Format>
inline constexpr OutlierKernels kOutlierKernels = outlier_kernels<Format>();

}  // namespace
}  // namespace quire
