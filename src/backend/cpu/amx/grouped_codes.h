#pragma once

#include <immintrin.h>

#include "backend/cpu/matmul/grouped_weights.h"
#include "backend/cpu/matmul/stream_fetch.h"

// How packed blocks of grouped weights (grouped_weights.h) become tiles of codes and scales by row. `Machine` is that of grouped_product.h.

#ifndef ALWAYS_INLINE
#define ALWAYS_INLINE inline __attribute__((always_inline))
#endif

namespace quire {

template <class Machine, class Format, size_t kGroupCols>
struct GroupedCodes {
  using Packed = GroupedBlock<Format, kGroupCols>;
  static constexpr GroupedCoding kCoding = Packed::kCoding;
  static constexpr bool kOpens = kCoding != GroupedCoding::byte;
  static constexpr size_t kRowBytes = 64;

  // Step s of a panel: its block, and where it is itself.
  static ALWAYS_INLINE const uint8_t* block_of(const uint8_t* panel, size_t s) {
    return panel + s / Packed::kSteps * Packed::kBytes;
  }
  static ALWAYS_INLINE const uint8_t* step_of(const uint8_t* panel, size_t s) {
    return block_of(panel, s) + Packed::kStart + s % Packed::kSteps * Packed::kStepBytes;
  }

  // What lies ahead of a step of a block, and with the first one of what stands before it: no line is left out.
  static ALWAYS_INLINE void prefetch_step(const uint8_t* block, size_t k) {
    const uint8_t* step = block + Packed::kStart + k * Packed::kStepBytes;
    if (k == 0) fetch_ahead<TileFetch, Packed::kStart>(block);
    fetch_ahead<TileFetch, Packed::kStepBytes>(step);
  }
  // Of a group of a block.
  static ALWAYS_INLINE __m512 row_scales(const uint8_t* block, size_t g) {
    const __m256i upper = _mm256_load_si256(reinterpret_cast<const __m256i*>(block + 2 * kPanelRows * g));
    return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(upper), 16));
  }

  // Those of the codes.
  static ALWAYS_INLINE __m512i row_sums(const uint8_t* block, size_t g) {
    const uint8_t* sums = block + Packed::kSums + 2 * kPanelRows * g;
    return _mm512_cvtepi16_epi32(_mm256_load_si256(reinterpret_cast<const __m256i*>(sums)));
  }

  // What stands for each index, twice: once for columns 0 to 31, once for 32 to 63.
  struct Entries {
    alignas(64) int16_t of[16][2];
  };
  static constexpr Entries entries() {
    Entries all = {};
    for (size_t i = 0; i < 16; ++i) {
      int16_t entry = int16_t(i);
      if constexpr (kCoding == GroupedCoding::table) entry = grouped_entry<Format>(i);
      all.of[i][0] = all.of[i][1] = entry;
    }
    return all;
  }

  // All codes of a row that indexes can stand for, in pairs of 16 bits.
  static ALWAYS_INLINE __m512i codes_by_index(const uint8_t* step, size_t row) {
    static constexpr Entries kEntries = entries();
    const __m512i all = _mm512_load_si512(kEntries.of);
    const __m512i ratios = _mm512_set1_epi32(word_at(step + 4 * row));
    if constexpr (kCoding == GroupedCoding::table) {
      return _mm512_mulhrs_epi16(all, ratios);
    } else {
      return _mm512_add_epi16(_mm512_mullo_epi16(all, ratios),
                              _mm512_set1_epi32(word_at(step + Packed::kOffsets + 4 * row)));
    }
  }
  static ALWAYS_INLINE int32_t word_at(const uint8_t* bytes) {
    int32_t word;
    __builtin_memcpy(&word, bytes, sizeof(word));
    return word;
  }

  // Rows 2 pair and 2 pair + 1 of a step: their codes, each xor kFlip.
  template <int kFlip>
  static ALWAYS_INLINE void read_rows(const uint8_t* step, size_t pair, __m512i& even, __m512i& odd) {
    const auto flipped = [](__m512i codes) __attribute__((always_inline)) {
      return _mm512_xor_si512(codes, _mm512_set1_epi8(char(0x80)));
    };
    if constexpr (!kOpens) {
      even = _mm512_load_si512(step + 2 * pair * kRowBytes);
      odd = _mm512_load_si512(step + (2 * pair + 1) * kRowBytes);
      if constexpr (kFlip != 0) {
        even = flipped(even);
        odd = flipped(odd);
      }
    } else {
      const __m512i indexes = _mm512_load_si512(step + Packed::kIndexes + pair * kRowBytes);
      __m512i first = codes_by_index(step, 2 * pair), second = codes_by_index(step, 2 * pair + 1);
      constexpr int kIsFlipped = kCoding == GroupedCoding::affine ? 0x80 : 0;  // by their offsets
      if constexpr (kFlip != kIsFlipped) {
        first = flipped(first);
        second = flipped(second);
      }
      even = Machine::permute_bytes(first, places(indexes));
      odd = Machine::permute_bytes(second, places(_mm512_ror_epi64(indexes, 4)));
    }
  }

  // Where the code of an index is: the low byte of 16 bits of a table's codes, the high one of affine ones.
  static ALWAYS_INLINE __m512i places(__m512i indexes) {
    constexpr char kByte = kCoding == GroupedCoding::affine ? 1 : 0;
    constexpr int kAndOr = (0xf0 & 0xcc) | 0xaa;  // (a & b) | c
    const __m512i by_half = _mm512_inserti64x4(_mm512_set1_epi8(kByte), _mm256_set1_epi8(kByte + 2), 1);
    return _mm512_ternarylogic_epi32(indexes, _mm512_set1_epi8(0x3c), by_half, kAndOr);
  }

  static ALWAYS_INLINE void open_tile(const uint8_t* step, int8_t* tile) {
#pragma GCC unroll 8
    for (size_t pair = 0; pair < kPanelRows / 2; ++pair) {
      __m512i even, odd;
      read_rows<0>(step, pair, even, odd);
      _mm512_store_si512(tile + 2 * pair * kRowBytes, even);
      _mm512_store_si512(tile + (2 * pair + 1) * kRowBytes, odd);
    }
  }

  // A step's tile, opened to `memory` where it has to be.
  static ALWAYS_INLINE const int8_t* codes_of(const uint8_t* step, int8_t* memory) {
    if constexpr (!kOpens) return reinterpret_cast<const int8_t*>(step);
    open_tile(step, memory);
    return memory;
  }
};

}  // namespace quire
