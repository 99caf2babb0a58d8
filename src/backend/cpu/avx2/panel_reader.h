#pragma once

#include <immintrin.h>

#include "backend/cpu/matmul/panel_scales.h"

// How packed panels become vectors of codes and scales, and how their codes are multiplied. Each file of kernels is
// compiled for its own instruction set, so each has its own copy of all this.

namespace quire {
namespace {

constexpr size_t kVectors = kPanelRows / 8;  // of eight rows

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
  ALWAYS_INLINE void add(const PerRow& rows, float times) {
    for (size_t i = 0; i < kVectors; ++i) v[i] = _mm256_fmadd_ps(rows.v[i], _mm256_set1_ps(times), v[i]);
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

  static ALWAYS_INLINE PerRow load_i8_of_pairs(const uint8_t* bytes, size_t which) {
    const __m256i pairs = load_bytes(bytes);
    const __m256i one = _mm256_srai_epi16(which == 0 ? _mm256_slli_epi16(pairs, 8) : pairs, 8);
    return {{_mm256_cvtepi32_ps(_mm256_cvtepi16_epi32(_mm256_castsi256_si128(one))),
             _mm256_cvtepi32_ps(_mm256_cvtepi16_epi32(_mm256_extracti128_si256(one, 1)))}};
  }

  static ALWAYS_INLINE PerRow load_e4m3(const uint8_t* bytes) {
    const __m128i all = _mm_loadu_si128(reinterpret_cast<const __m128i*>(bytes));
    const __m256i halves = _mm256_slli_epi16(_mm256_cvtepu8_epi16(all), 7);
    return {{_mm256_cvtph_ps(_mm256_castsi256_si128(halves)),
             _mm256_cvtph_ps(_mm256_extracti128_si256(halves, 1))}};
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
  // Codes that reach too far to be taken above 0.
  static constexpr int kRange = kWeightCodes<Format>.highest - kWeightCodes<Format>.lowest;
  static constexpr bool kIsSigned = kRange > 63;
  static constexpr int kLess = kCodes == Coding::widened ? 8 : -kLowest<Format>;
  static constexpr int kTimes = kCodes == Coding::widened ? 16 : 1;  // what the products are multiplied with
  // How many products of a vector are added in 16 bits: 4 * 2 * 31 * 127 = 31496, 2 * 2 * 63 * 127 = 32004.
  static constexpr bool kIsWide = kCodes == Coding::six || (kCodes == Coding::table && kRange > 31);
  static constexpr size_t kDeep = kIsSigned ? 1 : kIsWide ? 2 : 4;
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
      if constexpr (kCodes == Coding::widened || kCodes == Coding::four) {
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

template <class Format>
struct Columns {
  using Packed = PackedBlock<Format>;
  using Read = Codes<Format>;
  static constexpr size_t kMany = kOutlierSpan / 5;
  using Scales = ColumnScales<Format, PerRow>;

  // Of the code at the top of its four bytes.
  static ALWAYS_INLINE void store(__m256i top, const Scales& scales, size_t i, float* out) {
    __m256i code = Read::kIsSigned ? _mm256_srai_epi32(top, 24) : _mm256_srli_epi32(top, 24);
    if constexpr (!Read::kIsSigned) {
      code = _mm256_sub_epi32(code, _mm256_set1_epi32(Read::kLess));
      if constexpr (Read::kTimes != 1) code = _mm256_mullo_epi32(code, _mm256_set1_epi32(Read::kTimes));
    }
    const __m256 number = _mm256_cvtepi32_ps(code);
    if constexpr (Packed::Uniform::kHasMin) {
      _mm256_storeu_ps(out + 8 * i, _mm256_fmsub_ps(number, scales.scale.v[i], scales.min.v[i]));
    } else {
      _mm256_storeu_ps(out + 8 * i, _mm256_mul_ps(number, scales.scale.v[i]));
    }
  }

  template <size_t g>
  static ALWAYS_INLINE void read(const uint8_t* step, size_t place, const Scales& scales, float* out) {
    const __m128i to_top = _mm_cvtsi32_si128(24 - 8 * int(place));
    for (size_t i = 0; i < kVectors; ++i) {
      store(_mm256_sll_epi32(Read::template read<g>(step, i), to_top), scales, i, out);
    }
  }

  template <size_t g>
  static ALWAYS_INLINE void read_four(const uint8_t* step, const Scales& scales, float* out) {
    for (size_t i = 0; i < kVectors; ++i) {
      const __m256i four = Read::template read<g>(step, i);
      store(_mm256_slli_epi32(four, 24), scales, i, out);
      store(_mm256_slli_epi32(four, 16), scales, i, out + kPanelRows);
      store(_mm256_slli_epi32(four, 8), scales, i, out + 2 * kPanelRows);
      store(four, scales, i, out + 3 * kPanelRows);
    }
  }
};

template <class Format>
inline constexpr OutlierKernels kOutlierKernels = {OutlierColumns<Columns<Format>>::read,
                                                   add_outlier_columns<PerRow>};

}  // namespace
}  // namespace quire
