#pragma once

#include "backend/cpu/amx/grouped_codes.h"
#include "backend/cpu/amx/grouped_matmul.h"

// Panels of grouped weights and tiles of tokens. `Machine` is that of grouped_product.h.
//
// Tiles 0 to 3 hold sums, 4 weights, 5 inputs. There are no more than two operands at a time, even where that means to load one
// again: a thread that shares its core has hardly more tiles than it can name, and when all are in use each load waits for one.

namespace quire {

template <class Machine, class Format, size_t kGroup>
class GroupedTiles {
  using Codes = GroupedCodes<Machine, Format, kGroup>;
  using Packed = typename Codes::Packed;
  static constexpr bool kOpens = Codes::kOpens;
  static constexpr size_t kGroupSteps = Packed::kGroupSteps, kGroups = Packed::kGroups,
                          kSteps = Packed::kSteps;
  static constexpr size_t kRowBytes = Codes::kRowBytes;
  static constexpr size_t kWeights = 4, kInputs = 5;  // tiles

 public:
  // ---- up to 32 tokens: opening takes turns with products ----------------------------------------------------------------

  template <size_t kPanels>
  static void open_first(GroupedStream& stream, GroupedScratch& scratch) {
    stream.half = 0;
    const size_t count = stream.steps < kSteps ? stream.steps : kSteps;
    for (size_t k = 0; k < count; ++k) open_step<kPanels>(stream.panels, 0, k, scratch);
  }

  template <size_t kPanels, size_t kTiles>
  static void stream(GroupedStream& stream, GroupedScratch& scratch) {
    for (size_t p = 0; p < kPanels; ++p) {
      for (size_t t = 0; t < kTiles; ++t) clear(*stream.sums[p][t]);
    }
    const uint8_t* panels[2] = {stream.panels[0], stream.panels[1]};
    GroupedInput inputs[kGroupedStreamTiles] = {stream.inputs[0], stream.inputs[1]};
    for (size_t left = stream.steps; left > 0;) {
      const size_t here = left < kSteps ? left : kSteps;
      left -= here;
      const uint8_t* next[2] = {panels[0] + Packed::kBytes, panels[1] + Packed::kBytes};
      size_t after = left < kSteps ? left : kSteps;
      if (left == 0) {
        next[0] = stream.next[0];
        next[1] = stream.next[1];
        after = next[0] == nullptr ? 0 : stream.steps < kSteps ? stream.steps : kSteps;
      }
      stream_block<kPanels, kTiles>(panels, here, next, after, inputs, stream, scratch);
      stream.half ^= 1;
      for (size_t p = 0; p < kPanels; ++p) panels[p] = next[p];
      for (size_t t = 0; t < kTiles; ++t) {
        inputs[t].values += kSteps * kGroupedStepBytes;
        inputs[t].scales += kGroups * kGroupedTileTokens;
      }
    }
  }

  // ---- many tokens -----------------------------------------------------------------------------------------------------

  template <size_t kPanels>
  static void open_chunk(const GroupedChunk& chunk, GroupedScratch& scratch) {
    for (size_t p = 0; p < kPanels; ++p) {
      for (size_t s = 0; s < chunk.steps; ++s) {
        const uint8_t* block = chunk.panels[p] + s / kSteps * Packed::kBytes;
        const uint8_t* step = block + Packed::kStart + s % kSteps * Packed::kStepBytes;
        Codes::prefetch_step(block, s % kSteps);
        if constexpr (kOpens) Codes::open_tile(step, scratch.open[p][s]);
        if (s % kGroupSteps == 0)
          _mm512_store_ps(scratch.scales[p][s / kGroupSteps],
                          Codes::row_scales(block, s % kSteps / kGroupSteps));
      }
    }
  }

  // Two groups are scaled together: sums are loaded and stored once for both.
  template <size_t kPanels>
  static void multiply_chunk(const GroupedChunk& chunk, GroupedScratch& scratch) {
    const int8_t* inputs = chunk.input.values;
    const float* scales = chunk.input.scales;
    size_t s = 0, g = 0;
    for (; s + 2 * kGroupSteps <= chunk.steps;
         s += 2 * kGroupSteps, g += 2, scales += 2 * kGroupedTileTokens) {
      multiply_group<kPanels>(chunk, s, kGroupSteps, inputs, scratch, 0);
      multiply_group<kPanels>(chunk, s + kGroupSteps, kGroupSteps, inputs, scratch, 1);
#pragma GCC unroll 2
      for (size_t p = 0; p < kPanels; ++p)
        scale_two(scratch.ints[p], scratch.ints[2 + p], scratch.scales[p] + g, scales, *chunk.sums[p]);
    }
    for (; s < chunk.steps; s += kGroupSteps, ++g, scales += kGroupedTileTokens) {
      const size_t count = chunk.steps - s < kGroupSteps ? chunk.steps - s : kGroupSteps;
      multiply_group<kPanels>(chunk, s, count, inputs, scratch, 0);
      for (size_t p = 0; p < kPanels; ++p)
        scale(scratch.ints[p], scratch.scales[p][g], scales, *chunk.sums[p]);
    }
  }

 private:
  static constexpr size_t kAheadSteps = 2;  // of inputs, which come from the second-level cache
  static ALWAYS_INLINE void prefetch_input(const int8_t* tile) {
#pragma GCC unroll 16
    for (size_t line = 0; line < kGroupedStepBytes; line += 64) __builtin_prefetch(tile + line);
  }

  // Step k of a block of the panels, to a half of the scratch.
  template <size_t kPanels>
  static ALWAYS_INLINE void open_step(const uint8_t* const* panels, size_t half, size_t k,
                                      GroupedScratch& scratch) {
#pragma GCC unroll 2
    for (size_t p = 0; p < kPanels; ++p) {
      const uint8_t* step = panels[p] + Packed::kStart + k * Packed::kStepBytes;
      Codes::prefetch_step(panels[p], k);
      if constexpr (kOpens) Codes::open_tile(step, scratch.open[p][half * kSteps + k]);
      if (k % kGroupSteps == 0)
        _mm512_store_ps(scratch.scales[p][half * kSteps + k / kGroupSteps],
                        Codes::row_scales(panels[p], k / kGroupSteps));
    }
  }

  // ---- sums

  static ALWAYS_INLINE void clear(GroupedSums& sums) {
#pragma GCC unroll 16
    for (size_t r = 0; r < kPanelRows; ++r) _mm512_store_ps(sums[r], _mm512_setzero_ps());
  }

  static ALWAYS_INLINE __m512 scaled(const int32_t* ints, float row_scale, __m512 token_scales, __m512 sum) {
    return _mm512_fmadd_ps(_mm512_cvtepi32_ps(_mm512_load_si512(ints)),
                           _mm512_mul_ps(token_scales, _mm512_set1_ps(row_scale)), sum);
  }

  static ALWAYS_INLINE void scale(const GroupedInts& ints, const GroupedScales& row_scales,
                                  const float* token_scales, GroupedSums& sums) {
    const __m512 tokens = _mm512_loadu_ps(token_scales);
#pragma GCC unroll 16
    for (size_t r = 0; r < kPanelRows; ++r)
      _mm512_store_ps(sums[r], scaled(ints[r], row_scales[r], tokens, _mm512_load_ps(sums[r])));
  }

  static ALWAYS_INLINE void scale_two(const GroupedInts& first, const GroupedInts& second,
                                      const GroupedScales* row_scales, const float* token_scales,
                                      GroupedSums& sums) {
    const __m512 first_tokens = _mm512_loadu_ps(token_scales),
                 second_tokens = _mm512_loadu_ps(token_scales + kGroupedTileTokens);
#pragma GCC unroll 16
    for (size_t r = 0; r < kPanelRows; ++r) {
      const __m512 sum = scaled(first[r], row_scales[0][r], first_tokens, _mm512_load_ps(sums[r]));
      _mm512_store_ps(sums[r], scaled(second[r], row_scales[1][r], second_tokens, sum));
    }
  }

  // ---- products of tiles

  static ALWAYS_INLINE const int8_t* chunk_tile(const GroupedChunk& chunk, size_t p, size_t s,
                                                const GroupedScratch& scratch) {
    if constexpr (kOpens) return scratch.open[p][s];
    return reinterpret_cast<const int8_t*>(Codes::step_of(chunk.panels[p], s));
  }

  // The steps of a group, to ints[2 * place + panel].
  template <size_t kPanels>
  static ALWAYS_INLINE void multiply_group(const GroupedChunk& chunk, size_t first, size_t count,
                                           const int8_t*& inputs, GroupedScratch& scratch, size_t place) {
    Machine::template zero<0>();
    if constexpr (kPanels == 2) Machine::template zero<1>();
#pragma GCC unroll 4
    for (size_t s = first; s < first + count; ++s, inputs += kGroupedStepBytes) {
      Machine::template load<kInputs>(inputs, kRowBytes);
      Machine::template load<kWeights>(chunk_tile(chunk, 0, s, scratch), kRowBytes);
      Machine::template multiply<0, kWeights, kInputs>();
      if constexpr (kPanels == 2) {
        Machine::template load<kWeights>(chunk_tile(chunk, 1, s, scratch), kRowBytes);
        Machine::template multiply<1, kWeights, kInputs>();
      }
      const int8_t* ahead = s + kAheadSteps < chunk.steps
                                ? inputs + kAheadSteps * kGroupedStepBytes
                                : chunk.next_values + (s + kAheadSteps - chunk.steps) * kGroupedStepBytes;
      prefetch_input(ahead);
    }
    Machine::template store<0>(scratch.ints[2 * place], kRowBytes);
    if constexpr (kPanels == 2) Machine::template store<1>(scratch.ints[2 * place + 1], kRowBytes);
  }

  // `here` steps of a block with the tokens, and between them `after` steps of the next one opened.
  template <size_t kPanels, size_t kTiles>
  static ALWAYS_INLINE void stream_block(const uint8_t* const* panels, size_t here,
                                         const uint8_t* const* next, size_t after, const GroupedInput* inputs,
                                         const GroupedStream& stream, GroupedScratch& scratch) {
    const size_t half = stream.half;
    constexpr size_t kNone = kSteps;
    size_t waiting = kNone;  // group whose sums are stored and not scaled
    const auto finish = [&]() __attribute__((always_inline)) {
      if (waiting == kNone) return;
      for (size_t p = 0; p < kPanels; ++p) {
        for (size_t t = 0; t < kTiles; ++t)
          scale(scratch.ints[2 * p + t], scratch.scales[p][half * kSteps + waiting],
                inputs[t].scales + waiting * kGroupedTileTokens, *stream.sums[p][t]);
      }
      waiting = kNone;
    };
#pragma GCC unroll 1
    for (size_t k = 0; k < here; ++k) {
      if (k % kGroupSteps == 0) zero_sums<kPanels, kTiles>();
      const int8_t* weights[2];
      for (size_t p = 0; p < kPanels; ++p)
        weights[p] =
            kOpens ? scratch.open[p][half * kSteps + k]
                   : reinterpret_cast<const int8_t*>(panels[p] + Packed::kStart + k * Packed::kStepBytes);
      multiply_step<kPanels, kTiles>(weights, inputs, k * kGroupedStepBytes);
      for (size_t t = 0; t < kTiles; ++t) prefetch_input(inputs[t].values + (k + 1) * kGroupedStepBytes);
      if (k < after) open_step<kPanels>(next, half ^ 1, k, scratch);
      finish();
      if ((k + 1) % kGroupSteps == 0 || k + 1 == here) {
        store_sums<kPanels, kTiles>(scratch);
        waiting = k / kGroupSteps;
      }
    }
    for (size_t k = here; k < after; ++k) open_step<kPanels>(next, half ^ 1, k, scratch);
    finish();
  }

  // Sums are at 2 * panel + tile of tokens.
  template <size_t kPanels, size_t kTiles>
  static ALWAYS_INLINE void zero_sums() {
    Machine::template zero<0>();
    if constexpr (kTiles == 2) Machine::template zero<1>();
    if constexpr (kPanels == 2) Machine::template zero<2>();
    if constexpr (kPanels == 2 && kTiles == 2) Machine::template zero<3>();
  }
  template <size_t kPanels, size_t kTiles>
  static ALWAYS_INLINE void store_sums(GroupedScratch& scratch) {
    Machine::template store<0>(scratch.ints[0], kRowBytes);
    if constexpr (kTiles == 2) Machine::template store<1>(scratch.ints[1], kRowBytes);
    if constexpr (kPanels == 2) Machine::template store<2>(scratch.ints[2], kRowBytes);
    if constexpr (kPanels == 2 && kTiles == 2) Machine::template store<3>(scratch.ints[3], kRowBytes);
  }
  template <size_t kPanels, size_t kTiles>
  static ALWAYS_INLINE void multiply_step(const int8_t* const* weights, const GroupedInput* inputs,
                                          size_t at) {
    Machine::template load<kInputs>(inputs[0].values + at, kRowBytes);
    Machine::template load<kWeights>(weights[0], kRowBytes);
    Machine::template multiply<0, kWeights, kInputs>();
    if constexpr (kTiles == 1) {
      if constexpr (kPanels == 2) {
        Machine::template load<kWeights>(weights[1], kRowBytes);
        Machine::template multiply<2, kWeights, kInputs>();
      }
    } else {
      Machine::template load<kInputs>(inputs[1].values + at, kRowBytes);
      Machine::template multiply<1, kWeights, kInputs>();
      if constexpr (kPanels == 2) {
        Machine::template load<kWeights>(weights[1], kRowBytes);
        Machine::template multiply<3, kWeights, kInputs>();
        Machine::template load<kInputs>(inputs[0].values + at, kRowBytes);
        Machine::template multiply<2, kWeights, kInputs>();
      }
    }
  }
};

}  // namespace quire
