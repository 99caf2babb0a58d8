#pragma once

#include "backend/cpu/amx/folded_matmul.h"
#include "backend/cpu/avx512/panel_reader.h"
#include "backend/cpu/matmul/stream_fetch.h"

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
// Of the tiles, two are operands, of which weights and inputs take turns, and two or four are sums. When two threads share a core, more of them cost
// more than the loads they spare (docs/decisions, 14), and what a thread works on must leave half of the first-level cache to the other: an open
// block of a panel is 8 KB, inputs and sums are 7 for many tokens, and for few some 9.

namespace quire {

// How a code and its sub-block's scale become two planes. Codes of five bits that are not negative have scales of six bits, which are cut in
// two: code * (scale % 8) and code * (scale / 8) both fit in a byte, so bytes are multiplied as they are, two at a time, and nothing is carried.
// Other products have 14 bits with their sign, which are cut in two themselves.
template <class Format>
struct Fold {
  static constexpr bool kCutsScales = kWeightCodes<Format>.bits <= 5 && kWeightCodes<Format>.lowest == 0;
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
  static constexpr size_t kLow = 0, kHigh = 1;              // tiles: the sums of both planes,
  static constexpr size_t kSecondLow = 2, kSecondHigh = 3;  // those of a second tile of tokens,
  static constexpr size_t kInputs = 4, kCodes = 5;          // and operands
  static constexpr size_t kOpenAhead = 2;                   // steps
  static_assert(Packed::kValues == kFoldedCols);

 public:
  static constexpr FoldedKernels kernels() {
    return {.block_bytes = Packed::kBytes,
            .configure = Machine::configure,
            .release = Machine::release,
            .open = open,
            .multiply = multiply,
            .finish = finish<1>,
            .open_start = open_start,
            .stream = {stream<1>, stream<2>},
            .finish_stream = {finish<1>, finish<2>},
            .outliers = kOutlierKernels<Format>,
            .inputs = FoldedInputs<Machine>::kFormat};
  }

 private:
  // ---- opening

  static void open(const uint8_t* block, FoldedScratch& scratch) {
    for (size_t step = 0; step < kFoldedSteps; ++step) {
      open_half<0>(block, step, scratch.planes);
      open_half<1>(block, step, scratch.planes);
    }
    open_scales(block, scratch.scales[0]);
  }

  static void open_start(const uint8_t* block, FoldedScratch& scratch) {
    for (size_t step = 0; step < kOpenAhead; ++step) {
      open_half<0>(block, step, scratch.planes);
      open_half<1>(block, step, scratch.planes);
    }
  }

  static ALWAYS_INLINE void open_scales(const uint8_t* block, FoldedScales& out) {
    using Scales = PanelScales<Format, PerRow>;
    fetch_ahead<TileFetch, Packed::kStart>(block);
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
  template <size_t kHalf>
  static ALWAYS_INLINE void open_half(const uint8_t* block, size_t at, FoldedPlanes& out) {
    const size_t half = 2 * at + kHalf;
    uint8_t *low = out.low[at] + kHalf * 32 * kPanelRows, *high = out.high[at] + kHalf * 32 * kPanelRows;
    constexpr size_t kSubsInHalf = 32 / kSub;
    const uint8_t* step = block + Packed::kStart + half * Packed::kStepBytes;
    const uint8_t* bytes = block + Packed::kSubScales + kPanelRows * kSubsInHalf * half;
    fetch_ahead<TileFetch, Packed::kStepBytes>(step);
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

  // ---- products

  // Many tokens: an open block and one tile of them. Between the products vectors scale a part of what waits.
  static void multiply(const FoldedTask& task, FoldedScratch& scratch) {
    constexpr size_t kPart = kFoldedTokens / kFoldedSteps;
    const FoldedWaiting waiting = scratch.waiting;
    Machine::template zero<kLow>();
    Machine::template zero<kHigh>();
#pragma GCC unroll 4
    for (size_t step = 0; step < kFoldedSteps; ++step) {
      Machine::template load<kInputs>(task.input->values[step], kRowBytes);
      Machine::template load<kCodes>(scratch.planes.low[step], kRowBytes);
      Machine::template multiply_unsigned<kLow, kInputs, kCodes>();
      Machine::template load<kCodes>(scratch.planes.high[step], kRowBytes);
      multiply_high<kHigh>();
      prefetch_input(*task.next_input, step);
      if (waiting.scales != nullptr)
        scale<0, kPart>(waiting, scratch.ints[0], RowScales(*waiting.scales), step * kPart);
    }
    Machine::template store<kLow>(scratch.ints[0][0], kRowBytes);
    Machine::template store<kHigh>(scratch.ints[0][1], kRowBytes);
    scratch.waiting = {&scratch.scales[0], {task.input, nullptr}, task.sums};
  }

  // Few tokens: a block and all of them. Between the products of a step vectors scale a part of what waits, and open a step that comes.
  template <size_t kTiles>
  static void stream(const FoldedStream& now, FoldedScratch& scratch) {
    constexpr size_t kPart = kFoldedTokens / kFoldedSteps / 2;  // tokens of a tile that are scaled at a time
    Machine::template zero<kLow>();
    Machine::template zero<kHigh>();
    if constexpr (kTiles == 2) {
      Machine::template zero<kSecondLow>();
      Machine::template zero<kSecondHigh>();
    }
    const FoldedWaiting waiting = scratch.waiting;
    const RowScales scales(waiting.scales != nullptr ? *waiting.scales : *now.scales);
    for (size_t step = 0; step < kFoldedSteps; ++step) {
      const size_t first = step * 2 * kPart, open = (step + kOpenAhead) % kFoldedSteps;
      const uint8_t* block = open >= kOpenAhead ? now.block : now.next_block;
      const FoldedInput* const* next = open >= kOpenAhead ? now.inputs : now.next_inputs;
      const auto scale_part = [&]<size_t kTile>(size_t token) __attribute__((always_inline)) {
        if (waiting.scales != nullptr) scale<kTile, kPart>(waiting, scratch.ints[kTile], scales, token);
      };
      Machine::template load<kCodes>(scratch.planes.low[step], kRowBytes);
      Machine::template load<kInputs>(now.inputs[0]->values[step], kRowBytes);
      Machine::template multiply_unsigned<kLow, kInputs, kCodes>();
      scale_part.template operator()<0>(first);
      prefetch_input(*next[0], open);
      if constexpr (kTiles == 2) {
        Machine::template load<kInputs>(now.inputs[1]->values[step], kRowBytes);
        Machine::template multiply_unsigned<kSecondLow, kInputs, kCodes>();
        prefetch_input(*next[1], open);
      }
      if (block != nullptr) open_half<0>(block, open, scratch.planes);
      Machine::template load<kCodes>(scratch.planes.high[step], kRowBytes);
      if constexpr (kTiles == 2) {
        multiply_high<kSecondHigh>();
        scale_part.template operator()<1>(first);
        Machine::template load<kInputs>(now.inputs[0]->values[step], kRowBytes);
      }
      multiply_high<kHigh>();
      scale_part.template operator()<0>(first + kPart);
      if (block != nullptr) open_half<1>(block, open, scratch.planes);
      if constexpr (kTiles == 2) scale_part.template operator()<1>(first + kPart);
    }
    open_scales(now.block, *now.scales);
    Machine::template store<kLow>(scratch.ints[0][0], kRowBytes);
    Machine::template store<kHigh>(scratch.ints[0][1], kRowBytes);
    if constexpr (kTiles == 2) {
      Machine::template store<kSecondLow>(scratch.ints[1][0], kRowBytes);
      Machine::template store<kSecondHigh>(scratch.ints[1][1], kRowBytes);
    }
    scratch.waiting = {now.scales, {now.inputs[0], now.inputs[1]}, now.sums};
  }

  template <size_t kSums>
  static ALWAYS_INLINE void multiply_high() {
    if constexpr (Fold<Format>::kCutsScales) {
      Machine::template multiply_unsigned<kSums, kInputs, kCodes>();
    } else {
      Machine::template multiply_signed<kSums, kInputs, kCodes>();
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

  template <size_t kTiles>
  static void finish(FoldedScratch& scratch) {
    const FoldedWaiting waiting = scratch.waiting;
    if (waiting.scales == nullptr) return;
    const RowScales scales(*waiting.scales);
    scale<0, kFoldedTokens>(waiting, scratch.ints[0], scales, 0);
    if constexpr (kTiles == 2) scale<1, kFoldedTokens>(waiting, scratch.ints[1], scales, 0);
    scratch.waiting.scales = nullptr;
  }

  // A row of a panel each, in registers.
  struct RowScales {
    __m512 scale, min_scale;
    __m512i mins[kSubs / 2];
    explicit ALWAYS_INLINE RowScales(const FoldedScales& of)
        : scale(_mm512_load_ps(of.scales)), min_scale(_mm512_load_ps(of.min_scales)) {
#pragma GCC unroll 8
      for (size_t i = 0; i < kSubs / 2; ++i)
        mins[i] = kHasMin ? _mm512_load_si512(of.sub_mins[i]) : _mm512_setzero_si512();
    }
  };

  // Some of the tokens that wait, of a tile.
  template <size_t kTile, size_t kTokens>
  static ALWAYS_INLINE void scale(const FoldedWaiting& waiting, const FoldedInts (&ints)[2],
                                  const RowScales& scales, size_t first) {
    const FoldedInput& input = *waiting.inputs[kTile];
    float(*sums)[kPanelRows] = waiting.sums + kTile * kFoldedTokens;
#pragma GCC unroll 4
    for (size_t t = first; t < first + kTokens; ++t) {
      const __m512i high = _mm512_slli_epi32(_mm512_load_si512(ints[1][t]), Fold<Format>::kBits);
      const __m512i total = _mm512_add_epi32(high, _mm512_load_si512(ints[0][t]));
      __m512 scaled = _mm512_mul_ps(_mm512_cvtepi32_ps(total), scales.scale);
      if constexpr (kHasMin) {
        const int16_t* of_token = kSub == 32 ? input.sums32[t] : input.sums16[t];
        __m512i min_total = _mm512_setzero_si512();
#pragma GCC unroll 8
        for (size_t i = 0; i < kSubs / 2; ++i)
          min_total = _mm512_dpwssd_epi32(min_total, scales.mins[i], two_at(of_token + 2 * i));
        scaled = _mm512_fnmadd_ps(_mm512_cvtepi32_ps(min_total), scales.min_scale, scaled);
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
