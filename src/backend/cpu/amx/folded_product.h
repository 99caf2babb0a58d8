#pragma once

#include "backend/cpu/amx/folded_matmul.h"
#include "backend/cpu/avx512/panel_reader.h"

// What multiply_folded wants of an instruction set: AVX-512 with VNNI, and a machine
//
//   struct Machine {
//     static void configure();  // eight tiles of 16 rows of 64 bytes
//     static void release();
//     template <size_t kTile> static void zero();
//     template <size_t kTile> static void load(const void* rows, size_t stride_bytes);
//     template <size_t kTile> static void store(void* rows, size_t stride_bytes);
//     template <size_t kSums, size_t kInputs, size_t kCodes> static void multiply_signed();    // sums += inputs * codes
//     template <size_t kSums, size_t kInputs, size_t kCodes> static void multiply_unsigned();  // the codes are unsigned
//   };
//
// It comes from an unnamed namespace, and so what is made of it here stays in the file it is compiled for.
//
// Four tiles are in use: two sums, and two operands, of which the weights take turns. When two threads share a core, more of them cost more than
// the loads they spare (docs/decisions, 14), and what a thread works on must leave half of the first-level cache to the other: an open block of a
// panel is 8 KB, inputs and sums are 7.

namespace quire {

// How a code and its sub-block's scale become two planes. Codes of five bits that are not negative have scales of six bits, which are cut in
// two: code * (scale % 8) and code * (scale / 8) both fit in a byte, so bytes are multiplied as they are, two at a time, and nothing is carried.
// Other products have 14 bits with their sign, which are cut in two themselves.
template <class Format>
struct Fold {
  static constexpr bool kCutsScales = kIsAnyOf<Format, format::Q2_K, format::Q4_K, format::Q5_K>;
  static constexpr unsigned kBits =
      kCutsScales ? 3 : 8;  // a sum is that of the low plane and 2^kBits that of the high one

  // Those of sixteen rows, in both halves of 32 bits.
  struct Scales {
    __m512i low, high;
  };
  static ALWAYS_INLINE Scales scales(const uint8_t* bytes) {
    const __m128i all = _mm_loadu_si128(reinterpret_cast<const __m128i*>(bytes));
    const __m512i twice =
        _mm512_cvtepi8_epi16(_mm256_set_m128i(_mm_unpackhi_epi8(all, all), _mm_unpacklo_epi8(all, all)));
    if constexpr (kCutsScales) {
      return {_mm512_and_si512(twice, _mm512_set1_epi16(7)), _mm512_srli_epi16(twice, 3)};
    } else {
      return {twice, _mm512_slli_epi16(twice, 8)};
    }
  }

  // Four columns.
  static ALWAYS_INLINE void put(__m512i codes, const Scales& scales, uint8_t* low, uint8_t* high) {
    if constexpr (kCutsScales) {
      _mm512_store_si512(low, _mm512_mullo_epi16(codes, scales.low));
      _mm512_store_si512(high, _mm512_mullo_epi16(codes, scales.high));
    } else {
      constexpr int kAndOr = (0xf0 & 0xcc) | 0xaa;  // (a & b) | c
      constexpr int kSelect = 0xca;                 // a ? b : c, bit by bit
      const __m512i is_even = _mm512_set1_epi16(0x00ff);
      // Each 256 times itself: the upper half of the product with a scale is what is above eight bits, and with 256 times
      // the scale all of it.
      const __m512i even = _mm512_slli_epi16(codes, 8), odd = _mm512_andnot_si512(is_even, codes);
      const __m512i lows = _mm512_ternarylogic_epi32(_mm512_mulhi_epi16(even, scales.high), is_even,
                                                     _mm512_mullo_epi16(odd, scales.low), kAndOr);
      const __m512i highs = _mm512_ternarylogic_epi32(is_even, _mm512_mulhi_epi16(even, scales.low),
                                                      _mm512_mulhi_epi16(odd, scales.high), kSelect);
      _mm512_store_si512(low, lows);
      _mm512_store_si512(high, highs);
    }
  }
};

// ---- activations -------------------------------------------------------------------------------------------------------

// One function for all types: products of the same activations share what it packs.
template <class Machine>
struct FoldedInputs {
  static size_t tile_bytes(size_t cols) { return cols / kFoldedCols * sizeof(FoldedInput); }

  static void pack(const PackInputArgs& args) {
    FoldedInput* blocks = reinterpret_cast<FoldedInput*>(args.tile);
    for (size_t b = args.col_begin / kFoldedCols; b < args.col_end / kFoldedCols; ++b) {
      for (size_t t = 0; t < kFoldedTokens; ++t) {
        if (t < args.tokens) {
          pack_token(Q8Row(args.rows + t * args.stride_bytes, args.cols, kFoldedCols), b, t, blocks[b]);
        } else {
          clear_token(t, blocks[b]);
        }
      }
    }
  }

  static constexpr InputFormat kFormat = {
      .most_rows = kFoldedLeastTokens - 1, .tile_bytes = tile_bytes, .pack = pack};

 private:
  static ALWAYS_INLINE void pack_token(const Q8Row& row, size_t b, size_t t, FoldedInput& out) {
    const int8_t* values = row.values + b * kFoldedCols;
    for (size_t step = 0; step < kFoldedSteps; ++step)
      _mm512_store_si512(out.values[step][t], _mm512_loadu_si512(values + step * kFoldedStepCols));
    out.scales[t] = row.scales[b];
    __builtin_memcpy(out.sums32[t], row.sums32 + b * (kFoldedCols / 32), sizeof(out.sums32[t]));
    __builtin_memcpy(out.sums16[t], row.sums16 + b * (kFoldedCols / 16), sizeof(out.sums16[t]));
  }
  static ALWAYS_INLINE void clear_token(size_t t, FoldedInput& out) {
    for (size_t step = 0; step < kFoldedSteps; ++step)
      _mm512_store_si512(out.values[step][t], _mm512_setzero_si512());
    out.scales[t] = 0;
    __builtin_memset(out.sums32[t], 0, sizeof(out.sums32[t]));
    __builtin_memset(out.sums16[t], 0, sizeof(out.sums16[t]));
  }
};

// ---- products -------------------------------------------------------------------------------------------------------

template <class Machine, class Format>
class FoldedProduct {
  using Packed = PackedBlock<Format>;
  static constexpr size_t kSub = Packed::kSub, kSubs = Packed::kSubs;
  static constexpr bool kHasMin = Packed::Uniform::kHasMin;
  static constexpr size_t kRowBytes = 64;
  static constexpr size_t kAheadBytes =
      8192;  // of what is read from memory: fetched to the second-level cache
  static constexpr size_t kLow = 0, kHigh = 1, kInputs = 2,
                          kCodes = 3;  // tiles: sums of both planes, and operands
  static_assert(Packed::kValues == kFoldedCols);

 public:
  static constexpr FoldedKernels kernels() {
    return {.block_bytes = Packed::kBytes,
            .configure = Machine::configure,
            .release = Machine::release,
            .open = open,
            .multiply = multiply,
            .finish = finish,
            .outliers = kOutlierKernels<Format>,
            .inputs = FoldedInputs<Machine>::kFormat};
  }

 private:
  // ---- opening

  static void open(const uint8_t* block, FoldedPanel& out) {
    for (size_t step = 0; step < kFoldedSteps; ++step) open_step(block, step, out);
  }

  // A function, so that it is there once.
  static __attribute__((noinline)) void open_step(const uint8_t* block, size_t step, FoldedPanel& out) {
    if (step == 0) prefetch_ahead<Packed::kStart>(block);
    open_half(block, 2 * step, out.low[step], out.high[step]);
    open_half(block, 2 * step + 1, out.low[step] + 32 * kPanelRows, out.high[step] + 32 * kPanelRows);
    if (step + 1 == kFoldedSteps) open_scales(block, out);  // until then, what waits may need those before
  }

  static ALWAYS_INLINE void open_scales(const uint8_t* block, FoldedPanel& out) {
    using Scales = PanelScales<Format, PerRow>;
    Scales::block_scales(block).store(out.scales);
    if constexpr (kHasMin) {
      Scales::block_min_scales(block).store(out.min_scales);
#pragma GCC unroll 8
      for (size_t i = 0; i < kSubs / 2; ++i) {
        const __m256i mins =
            _mm256_loadu_si256(reinterpret_cast<const __m256i*>(block + Packed::kSubMins + 32 * i));
        _mm512_store_si512(out.sub_mins[i], _mm512_cvtepi8_epi16(mins));
      }
    }
  }

  // 32 columns, as a packed block has them.
  static ALWAYS_INLINE void open_half(const uint8_t* block, size_t half, uint8_t* low, uint8_t* high) {
    constexpr size_t kSubsInHalf = 32 / kSub;
    const uint8_t* step = block + Packed::kStart + half * Packed::kStepBytes;
    const uint8_t* bytes = block + Packed::kSubScales + kPanelRows * kSubsInHalf * half;
    prefetch_ahead<Packed::kStepBytes>(step);
    const typename Fold<Format>::Scales first = Fold<Format>::scales(bytes);
    const typename Fold<Format>::Scales second =
        kSubsInHalf == 1 ? first : Fold<Format>::scales(bytes + kPanelRows);
    const auto put = [&]<size_t g>() __attribute__((always_inline)) {
      Fold<Format>::put(Codes<Format, 0>::template read<g>(step), g < 4 ? first : second, low + kRowBytes * g,
                        high + kRowBytes * g);
    };
    put.template operator()<0>();
    put.template operator()<1>();
    put.template operator()<2>();
    put.template operator()<3>();
    put.template operator()<4>();
    put.template operator()<5>();
    put.template operator()<6>();
    put.template operator()<7>();
  }

  template <size_t kBytes>
  static ALWAYS_INLINE void prefetch_ahead(const uint8_t* now) {
#pragma GCC unroll 16
    for (size_t line = 0; line < kBytes; line += 64) __builtin_prefetch(now + kAheadBytes + line, 0, 2);
  }

  // ---- products

  // Between the products of a step, vectors scale a part of what waits and open a part of what comes.
  static void multiply(const FoldedTask& task, FoldedOpening& opening, FoldedScratch& scratch) {
    Machine::template zero<kLow>();
    Machine::template zero<kHigh>();
#pragma GCC unroll 4
    for (size_t step = 0; step < kFoldedSteps; ++step) {
      multiply_step(task, step);
      prefetch_input(*task.next_input, step);
      scale_part(scratch, step);
      if (opening.next < opening.end && opening.clock++ % opening.every == 0)
        open_step(opening.block, opening.next++, *opening.out);
    }
    scratch.turn ^= 1;
    FoldedInts(&ints)[2] = scratch.ints[scratch.turn];
    Machine::template store<kLow>(ints[0], kRowBytes);
    Machine::template store<kHigh>(ints[1], kRowBytes);
    scratch.waiting = task;
  }

  static ALWAYS_INLINE void multiply_step(const FoldedTask& task, size_t step) {
    Machine::template load<kInputs>(task.input->values[step], kRowBytes);
    Machine::template load<kCodes>(task.panel->low[step], kRowBytes);
    Machine::template multiply_unsigned<kLow, kInputs, kCodes>();
    Machine::template load<kCodes>(task.panel->high[step], kRowBytes);
    if constexpr (Fold<Format>::kCutsScales) {
      Machine::template multiply_unsigned<kHigh, kInputs, kCodes>();
    } else {
      Machine::template multiply_signed<kHigh, kInputs, kCodes>();
    }
  }

  // A quarter of it.
  static ALWAYS_INLINE void prefetch_input(const FoldedInput& input, size_t step) {
#pragma GCC unroll 16
    for (size_t t = 0; t < kFoldedTokens; ++t) __builtin_prefetch(input.values[step][t]);
    if (step == 0) __builtin_prefetch(input.scales);
    if constexpr (kHasMin) {
      const std::byte* sums =
          reinterpret_cast<const std::byte*>(kSub == 32 ? input.sums32[0] : input.sums16[0]);
      __builtin_prefetch(sums + step * kRowBytes);
      if constexpr (kSub == 16) __builtin_prefetch(sums + (4 + step) * kRowBytes);
    }
  }

  // ---- scales

  static void finish(FoldedScratch& scratch) {
    for (size_t part = 0; part < kFoldedSteps; ++part) scale_part(scratch, part);
    scratch.waiting.panel = nullptr;
  }

  // A quarter of the tokens that wait.
  static ALWAYS_INLINE void scale_part(const FoldedScratch& scratch, size_t part) {
    const FoldedTask& task = scratch.waiting;
    if (task.panel == nullptr) return;
    scale(*task.panel, *task.input, scratch.ints[scratch.turn], task.sums, part * kPartTokens);
  }

  static constexpr size_t kPartTokens = kFoldedTokens / kFoldedSteps;

  static ALWAYS_INLINE void scale(const FoldedPanel& panel, const FoldedInput& input,
                                  const FoldedInts (&ints)[2], float (*sums)[kPanelRows], size_t first) {
    const __m512 scale = _mm512_load_ps(panel.scales), min_scale = _mm512_load_ps(panel.min_scales);
    __m512i mins[kSubs / 2];
    if constexpr (kHasMin) {
#pragma GCC unroll 8
      for (size_t i = 0; i < kSubs / 2; ++i) mins[i] = _mm512_load_si512(panel.sub_mins[i]);
    }
#pragma GCC unroll 4
    for (size_t t = first; t < first + kPartTokens; ++t) {
      const __m512i high = _mm512_slli_epi32(_mm512_load_si512(ints[1][t]), Fold<Format>::kBits);
      const __m512i total = _mm512_add_epi32(high, _mm512_load_si512(ints[0][t]));
      __m512 scaled = _mm512_mul_ps(_mm512_cvtepi32_ps(total), scale);
      if constexpr (kHasMin) {
        const int16_t* of_token = kSub == 32 ? input.sums32[t] : input.sums16[t];
        __m512i min_total = _mm512_setzero_si512();
#pragma GCC unroll 8
        for (size_t i = 0; i < kSubs / 2; ++i)
          min_total = _mm512_dpwssd_epi32(min_total, mins[i], two_at(of_token + 2 * i));
        scaled = _mm512_fnmadd_ps(_mm512_cvtepi32_ps(min_total), min_scale, scaled);
      }
      const __m512 sum = _mm512_fmadd_ps(scaled, _mm512_set1_ps(input.scales[t]), _mm512_load_ps(sums[t]));
      _mm512_store_ps(sums[t], sum);
    }
  }

  static ALWAYS_INLINE __m512i two_at(const int16_t* numbers) {
    int32_t both;
    __builtin_memcpy(&both, numbers, sizeof(both));
    return _mm512_set1_epi32(both);
  }
};

}  // namespace quire
