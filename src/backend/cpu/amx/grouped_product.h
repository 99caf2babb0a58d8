#pragma once

#include <immintrin.h>

#include "backend/cpu/amx/grouped_matmul.h"

// What multiply_grouped wants of an instruction set: AVX-512 with VNNI, and a machine
//
//   struct Machine {
//     static void configure();  // eight tiles of 16 rows of 64 bytes
//     static void release();
//     template <size_t kTile> static void zero();
//     template <size_t kTile> static void load(const void* rows, size_t stride_bytes);
//     template <size_t kTile> static void store(void* rows, size_t stride_bytes);
//     template <size_t kSums, size_t kWeights, size_t kInputs> static void multiply();  // sums += weights * inputs
//     static __m512i permute_bytes(__m512i table, __m512i places);  // vpermb
//   };
//
// It comes from an unnamed namespace, and so what is made of it here stays in the file it is compiled for.
//
// Tiles 0 to 3 hold sums, 4 weights, 5 inputs. There are no more than two operands at a time, even where that means to load one
// again: a thread that shares its core has hardly more tiles than it can name, and when all are in use each load waits for one.

#ifndef ALWAYS_INLINE
#define ALWAYS_INLINE inline __attribute__((always_inline))
#endif

namespace quire {

template <class Machine, class Format, size_t kGroupCols>
class GroupedProduct {
  using Packed = GroupedBlock<Format, kGroupCols>;
  static constexpr GroupedCoding kCoding = Packed::kCoding;
  static constexpr bool kOpens = kCoding != GroupedCoding::byte;
  static constexpr size_t kGroup = kGroupCols, kGroupSteps = Packed::kGroupSteps, kGroups = Packed::kGroups;
  static constexpr size_t kSteps = Packed::kSteps;
  static constexpr size_t kRowBytes = 64;
  static constexpr size_t kAheadBytes =
      8192;  // of what is read from memory: fetched to the second-level cache
  static constexpr size_t kWeights = 4, kInputs = 5;  // tiles
  static constexpr size_t kSpanSteps = kOutlierSpan / kGroupedStepCols;

 public:
  static constexpr GroupedKernels kernels() {
    GroupedKernels kernels = {};
    kernels.group = kGroup;
    kernels.start_bytes = Packed::kStart;
    kernels.step_bytes = Packed::kStepBytes;
    kernels.configure = Machine::configure;
    kernels.release = Machine::release;
    kernels.multiply_one = multiply_one;
    kernels.open_first[0] = open_first<1>;
    kernels.open_first[1] = open_first<2>;
    kernels.stream[0][0] = stream<1, 1>;
    kernels.stream[0][1] = stream<1, 2>;
    kernels.stream[1][0] = stream<2, 1>;
    kernels.stream[1][1] = stream<2, 2>;
    kernels.open_chunk[0] = open_chunk<1>;
    kernels.open_chunk[1] = open_chunk<2>;
    kernels.multiply_chunk[0] = multiply_chunk<1>;
    kernels.multiply_chunk[1] = multiply_chunk<2>;
    kernels.transpose = transpose;
    kernels.inputs = {.most_rows = 1, .tile_bytes = input_tile_bytes, .pack = pack_input};
    kernels.add_outliers = add_outliers;
    return kernels;
  }

  static size_t input_tile_bytes(size_t cols) {
    return uses_at(cols) + outlier_spans(cols) * sizeof(GroupedUses);
  }

  // ---- activations ---------------------------------------------------------------------------------------------------

  static void pack_input(const PackInputArgs& args) {
    for (size_t c = args.col_begin; c < args.col_end; c += kGroupedStepCols) {
      const size_t left = args.cols - c;
      const __mmask64 live = left < kGroupedStepCols ? (__mmask64(1) << left) - 1 : ~__mmask64(0);
      const std::byte* row = args.rows + c;
      __m512i fours[kGroupedTileTokens];
#pragma GCC unroll 16
      for (size_t t = 0; t < kGroupedTileTokens; ++t, row += args.stride_bytes) {
        fours[t] = t < args.tokens ? _mm512_maskz_loadu_epi8(live, row) : _mm512_setzero_si512();
      }
      transpose_words(fours);
      std::byte* out = args.tile + c / kGroupedStepCols * kGroupedStepBytes;
#pragma GCC unroll 16
      for (size_t i = 0; i < 16; ++i) _mm512_store_si512(out + i * kRowBytes, fours[i]);
    }
    float* scales = reinterpret_cast<float*>(args.tile + grouped_steps(args.cols) * kGroupedStepBytes);
    for (size_t t = 0; t < kGroupedTileTokens; ++t) {
      const float* from = reinterpret_cast<const float*>(args.rows + t * args.stride_bytes + args.cols);
      for (size_t g = args.col_begin / kGroup; g < (args.col_end + kGroup - 1) / kGroup; ++g)
        scales[g * kGroupedTileTokens + t] = t < args.tokens ? from[g] : 0.0f;
    }
    GroupedUses* uses = reinterpret_cast<GroupedUses*>(args.tile + uses_at(args.cols));
    for (size_t span = (args.col_begin + kOutlierSpan - 1) / kOutlierSpan; span * kOutlierSpan < args.col_end;
         ++span)
      list_uses(args, span, uses[span]);
  }

  // ---- one token -----------------------------------------------------------------------------------------------------

  // `vpdpbusd` takes one operand unsigned. Codes of a table are taken as they are, and values 128 more than they are, which the sums of
  // the codes take back; other codes are 128 more, which `corrections` takes back.
  static void multiply_one(const GroupedOne& one) {
    __m512 sum = _mm512_setzero_ps();
    const uint8_t* block = one.panel;
    const int8_t* values = one.values;
    const float* scales = one.scales;
    const int32_t* corrections = one.corrections;
    size_t outlier = 0;
    for (size_t first = 0; first < one.steps; first += kSteps, block += Packed::kBytes) {
      const size_t steps = one.steps - first < kSteps ? one.steps - first : kSteps;
      for (size_t g = 0, k = 0; k < steps; ++g, ++scales, ++corrections) {
        __m512i rows[kPanelRows];
#pragma GCC unroll 16
        for (size_t r = 0; r < kPanelRows; ++r) rows[r] = _mm512_setzero_si512();
        const size_t end = k + kGroupSteps < steps ? k + kGroupSteps : steps;
        for (; k < end; ++k, values += kGroupedStepCols) {
          prefetch_step(block, k);
          const uint8_t* step = block + Packed::kStart + k * Packed::kStepBytes;
          __m512i inputs = _mm512_loadu_si512(values);
          if constexpr (Packed::kHasSums) inputs = _mm512_xor_si512(inputs, _mm512_set1_epi8(char(0x80)));
#pragma GCC unroll 8
          for (size_t pair = 0; pair < kPanelRows / 2; ++pair) {
            __m512i even, odd;
            if constexpr (Packed::kHasSums) {
              read_rows<0>(step, pair, even, odd);
              rows[2 * pair] = _mm512_dpbusd_epi32(rows[2 * pair], inputs, even);
              rows[2 * pair + 1] = _mm512_dpbusd_epi32(rows[2 * pair + 1], inputs, odd);
            } else {
              read_rows<0x80>(step, pair, even, odd);
              rows[2 * pair] = _mm512_dpbusd_epi32(rows[2 * pair], even, inputs);
              rows[2 * pair + 1] = _mm512_dpbusd_epi32(rows[2 * pair + 1], odd, inputs);
            }
          }
        }
        __m512i total = totals_of(rows);
        if constexpr (Packed::kHasSums) {
          total = _mm512_sub_epi32(total, _mm512_slli_epi32(row_sums(block, g), 7));
        } else {
          total = _mm512_add_epi32(total, _mm512_set1_epi32(*corrections));
        }
        sum = _mm512_fmadd_ps(_mm512_cvtepi32_ps(total),
                              _mm512_mul_ps(_mm512_set1_ps(*scales), row_scales(block, g)), sum);
      }
      const bool ends_span = (first + kSteps) % kSpanSteps == 0 || first + kSteps >= one.steps;
      if (!ends_span) continue;
      for (const size_t end = one.outlier_ends[first / kSpanSteps]; outlier < end; ++outlier)
        read_column(one.panel, one.outlier_cols[outlier], one.outlier_weights[outlier]);
    }
    for (size_t i = 0; i < outlier; ++i)
      sum = _mm512_fmadd_ps(_mm512_loadu_ps(one.outlier_weights[i]), _mm512_set1_ps(one.outlier_values[i]),
                            sum);
    _mm512_storeu_ps(one.out, sum);
  }

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
        prefetch_step(block, s % kSteps);
        if constexpr (kOpens) open_tile(step, scratch.open[p][s]);
        if (s % kGroupSteps == 0)
          _mm512_store_ps(scratch.scales[p][s / kGroupSteps], row_scales(block, s % kSteps / kGroupSteps));
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

  static void transpose(const GroupedSums& sums, float (*out)[kPanelRows]) {
    __m512i rows[16];
#pragma GCC unroll 16
    for (size_t r = 0; r < 16; ++r) rows[r] = _mm512_load_si512(sums[r]);
    transpose_words(rows);
#pragma GCC unroll 16
    for (size_t t = 0; t < 16; ++t) _mm512_storeu_si512(out[t], rows[t]);
  }

  // ---- outliers ----------------------------------------------------------------------------------------------------------

  static void add_outliers(const uint8_t* panel, size_t cols, const std::byte* tile, size_t tiles,
                           float (*products)[kPanelRows]) {
    constexpr size_t kSpanGroups = kOutlierSpan / kGroup;
    constexpr size_t kFew = 12;  // uses that are worth no more than their own columns
    const size_t tile_bytes = input_tile_bytes(cols), at = uses_at(cols);
    alignas(64) float weights[kGroup][kPanelRows];
    for (size_t span = 0; span < outlier_spans(cols); ++span) {
      const std::byte* first = tile + at + span * sizeof(GroupedUses);
      const auto uses_of = [&](size_t t) __attribute__((always_inline)) {
        return reinterpret_cast<const GroupedUses*>(first + t * tile_bytes);
      };
      for (size_t g = 0; g < kSpanGroups; ++g) {
        size_t count = 0;
        for (size_t t = 0; t < tiles; ++t) count += group_end(*uses_of(t), g) - group_begin(*uses_of(t), g);
        if (count == 0) continue;
        const size_t column = span * kOutlierSpan + g * kGroup;
        if (count >= kFew) read_group(panel, column, cols, weights);
        for (size_t t = 0; t < tiles; ++t) {
          const GroupedUses& uses = *uses_of(t);
          const GroupedUse* use = uses.uses + group_begin(uses, g);
          const GroupedUse* end = uses.uses + group_end(uses, g);
          if (count < kFew) {
            for (const GroupedUse* each = use; each != end; ++each)
              read_column(panel, column + each->column / kRowBytes, weights[each->column / kRowBytes]);
          }
          add_uses(use, end, weights[0], products[t * kGroupedTileTokens]);
        }
      }
    }
  }

 private:
  // Where the uses of outliers are in a packed tile.
  static ALWAYS_INLINE size_t uses_at(size_t cols) {
    return grouped_steps(cols) * kGroupedStepBytes + (cols + kGroup - 1) / kGroup * kRowBytes;
  }

  static void list_uses(const PackInputArgs& args, size_t span, GroupedUses& out) {
    const Outlier* next[kGroupedTileTokens];
    const Outlier* end[kGroupedTileTokens];
    for (size_t t = 0; t < args.tokens; ++t) {
      const Q8Row row(args.rows + t * args.stride_bytes, args.cols, kGroup);
      next[t] = row.outliers + span * most_outliers(kGroup);
      end[t] = next[t] + row.outlier_counts[span];
    }
    uint32_t count = 0;
    for (size_t g = 0; g < kOutlierSpan / kGroup; ++g) {
      for (bool is_more = true; is_more;) {
        is_more = false;
        for (size_t t = 0; t < args.tokens; ++t) {
          if (next[t] == end[t] || next[t]->col >= (g + 1) * kGroup) continue;
          out.uses[count++] = {uint16_t(t * kRowBytes), uint16_t(next[t]->col % kGroup * kRowBytes),
                               next[t]->value};
          ++next[t];
          is_more = true;
        }
      }
      out.ends[g] = count;
    }
  }
  static ALWAYS_INLINE size_t group_begin(const GroupedUses& uses, size_t g) {
    return g == 0 ? 0 : uses.ends[g - 1];
  }
  static ALWAYS_INLINE size_t group_end(const GroupedUses& uses, size_t g) {
    return uses.ends[g];
  }

  static ALWAYS_INLINE void add_uses(const GroupedUse* use, const GroupedUse* end, const float* weights,
                                     float* products) {
    for (; use != end; ++use) {
      float* product = products + use->token / sizeof(float);
      const __m512 column = _mm512_load_ps(weights + use->column / sizeof(float));
      _mm512_storeu_ps(product,
                       _mm512_fmadd_ps(column, _mm512_set1_ps(use->value), _mm512_loadu_ps(product)));
    }
  }

  // The weights of a group of columns.
  static void read_group(const uint8_t* panel, size_t column, size_t cols, float (*weights)[kPanelRows]) {
    const size_t last = grouped_steps(cols);
    for (size_t s = column / kGroupedStepCols; s < (column + kGroup) / kGroupedStepCols && s < last; ++s) {
      alignas(64) int8_t open[kGroupedStepBytes];
      const uint8_t* block = panel + s / kSteps * Packed::kBytes;
      const uint8_t* step = block + Packed::kStart + s % kSteps * Packed::kStepBytes;
      read_step(codes_of(step, open), row_scales(block, s % kSteps / kGroupSteps),
                weights[s * kGroupedStepCols - column]);
    }
  }

  static constexpr size_t kAheadSteps = 2;  // of inputs, which come from the second-level cache
  static ALWAYS_INLINE void prefetch_input(const int8_t* tile) {
#pragma GCC unroll 16
    for (size_t line = 0; line < kGroupedStepBytes; line += 64) __builtin_prefetch(tile + line);
  }

  // What lies ahead of a step of a block, and with the first one of what stands before it: no line is left out.
  static ALWAYS_INLINE void prefetch_step(const uint8_t* block, size_t k) {
    const uint8_t* step = block + Packed::kStart + k * Packed::kStepBytes;
    if (k == 0) prefetch_ahead<Packed::kStart>(block);
    prefetch_ahead<Packed::kStepBytes>(step);
  }
  template <size_t kBytes>
  static ALWAYS_INLINE void prefetch_ahead(const uint8_t* now) {
#pragma GCC unroll 16
    for (size_t line = 0; line < kBytes; line += 64) __builtin_prefetch(now + kAheadBytes + line, 0, 2);
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

  // ---- opening

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

  // Step k of a block of the panels, to a half of the scratch.
  template <size_t kPanels>
  static ALWAYS_INLINE void open_step(const uint8_t* const* panels, size_t half, size_t k,
                                      GroupedScratch& scratch) {
#pragma GCC unroll 2
    for (size_t p = 0; p < kPanels; ++p) {
      const uint8_t* step = panels[p] + Packed::kStart + k * Packed::kStepBytes;
      prefetch_step(panels[p], k);
      if constexpr (kOpens) open_tile(step, scratch.open[p][half * kSteps + k]);
      if (k % kGroupSteps == 0)
        _mm512_store_ps(scratch.scales[p][half * kSteps + k / kGroupSteps],
                        row_scales(panels[p], k / kGroupSteps));
    }
  }

  // ---- sums

  static ALWAYS_INLINE void clear(GroupedSums& sums) {
#pragma GCC unroll 16
    for (size_t r = 0; r < kPanelRows; ++r) _mm512_store_ps(sums[r], _mm512_setzero_ps());
  }

  // The lanes of each row added up.
  static ALWAYS_INLINE __m512i totals_of(__m512i (&r)[kPanelRows]) {
#pragma GCC unroll 8
    for (size_t i = 0; i < 8; ++i)
      r[i] = _mm512_add_epi32(_mm512_unpacklo_epi32(r[2 * i], r[2 * i + 1]),
                              _mm512_unpackhi_epi32(r[2 * i], r[2 * i + 1]));
#pragma GCC unroll 4
    for (size_t i = 0; i < 4; ++i)
      r[i] = _mm512_add_epi32(_mm512_unpacklo_epi64(r[2 * i], r[2 * i + 1]),
                              _mm512_unpackhi_epi64(r[2 * i], r[2 * i + 1]));
#pragma GCC unroll 2
    for (size_t i = 0; i < 2; ++i)
      r[i] = _mm512_add_epi32(_mm512_shuffle_i32x4(r[2 * i], r[2 * i + 1], 0x88),
                              _mm512_shuffle_i32x4(r[2 * i], r[2 * i + 1], 0xdd));
    return _mm512_add_epi32(_mm512_shuffle_i32x4(r[0], r[1], 0x88), _mm512_shuffle_i32x4(r[0], r[1], 0xdd));
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
    const uint8_t* step =
        chunk.panels[p] + s / kSteps * Packed::kBytes + Packed::kStart + s % kSteps * Packed::kStepBytes;
    return reinterpret_cast<const int8_t*>(step);
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

  // ---- changes of order

  // 16 x 16 numbers of 32 bits.
  static ALWAYS_INLINE void transpose_words(__m512i (&rows)[16]) {
    __m512i twos[16], fours[16];
#pragma GCC unroll 8
    for (size_t i = 0; i < 8; ++i) {
      twos[2 * i] = _mm512_unpacklo_epi32(rows[2 * i], rows[2 * i + 1]);
      twos[2 * i + 1] = _mm512_unpackhi_epi32(rows[2 * i], rows[2 * i + 1]);
    }
#pragma GCC unroll 4
    for (size_t i = 0; i < 4; ++i) {  // column k of each lane of four, rows 4 i to 4 i + 3
      fours[4 * i] = _mm512_unpacklo_epi64(twos[4 * i], twos[4 * i + 2]);
      fours[4 * i + 1] = _mm512_unpackhi_epi64(twos[4 * i], twos[4 * i + 2]);
      fours[4 * i + 2] = _mm512_unpacklo_epi64(twos[4 * i + 1], twos[4 * i + 3]);
      fours[4 * i + 3] = _mm512_unpackhi_epi64(twos[4 * i + 1], twos[4 * i + 3]);
    }
#pragma GCC unroll 4
    for (size_t k = 0; k < 4; ++k) {
      const __m512i a = _mm512_shuffle_i32x4(fours[k], fours[4 + k], 0x88);
      const __m512i b = _mm512_shuffle_i32x4(fours[8 + k], fours[12 + k], 0x88);
      const __m512i c = _mm512_shuffle_i32x4(fours[k], fours[4 + k], 0xdd);
      const __m512i d = _mm512_shuffle_i32x4(fours[8 + k], fours[12 + k], 0xdd);
      rows[k] = _mm512_shuffle_i32x4(a, b, 0x88);
      rows[8 + k] = _mm512_shuffle_i32x4(a, b, 0xdd);
      rows[4 + k] = _mm512_shuffle_i32x4(c, d, 0x88);
      rows[12 + k] = _mm512_shuffle_i32x4(c, d, 0xdd);
    }
  }

  static ALWAYS_INLINE void read_column(const uint8_t* panel, size_t column, float* out) {
    const size_t s = column / kGroupedStepCols, c = column % kGroupedStepCols;
    const uint8_t* block = panel + s / kSteps * Packed::kBytes;
    const uint8_t* step = block + Packed::kStart + s % kSteps * Packed::kStepBytes;
    const __m512 scale = row_scales(block, s % kSteps / kGroupSteps);
    _mm512_storeu_ps(out, _mm512_mul_ps(_mm512_cvtepi32_ps(column_codes(step, c)), scale));
  }

  // Column c of a step, for sixteen rows.
  static ALWAYS_INLINE __m512i column_codes(const uint8_t* step, size_t c) {
    if constexpr (!kOpens) {
      const __m512i rows =
          _mm512_setr_epi32(0, 64, 128, 192, 256, 320, 384, 448, 512, 576, 640, 704, 768, 832, 896, 960);
      const __m512i fours = _mm512_i32gather_epi32(rows, step + c / 4 * 4, 1);
      return _mm512_srai_epi32(_mm512_sll_epi32(fours, _mm_cvtsi32_si128(24 - 8 * int(c % 4))), 24);
    } else {
      const __m512i ratios = half_words(step, c), indexes = column_indexes(step + Packed::kIndexes, c);
      if constexpr (kCoding == GroupedCoding::table) {
        static constexpr WideEntries kEntries = wide_entries();
        const __m512i entries = _mm512_permutexvar_epi32(indexes, _mm512_load_si512(kEntries.of));
        const __m512i half = _mm512_set1_epi32(1 << 14);
        return _mm512_srai_epi32(_mm512_add_epi32(_mm512_mullo_epi32(entries, ratios), half), 15);
      } else {
        const __m512i offsets = half_words(step + Packed::kOffsets, c, 0x8000);
        return _mm512_srai_epi32(_mm512_add_epi32(_mm512_mullo_epi32(indexes, ratios), offsets), 8);
      }
    }
  }

  struct WideEntries {
    alignas(64) int32_t of[16];
  };
  static constexpr WideEntries wide_entries() {
    WideEntries all = {};
    if constexpr (kCoding == GroupedCoding::table) {
      for (size_t i = 0; i < 16; ++i) all.of[i] = grouped_entry<Format>(i);
    }
    return all;
  }

  // Of each row's two, that of column c.
  static ALWAYS_INLINE __m512i half_words(const uint8_t* pairs, size_t c, unsigned flip = 0) {
    const __m128i to_top = _mm_cvtsi32_si128(16 - 16 * int(c / 32));
    const __m512i words = _mm512_xor_si512(_mm512_load_si512(pairs), _mm512_set1_epi16(short(flip)));
    return _mm512_srai_epi32(_mm512_sll_epi32(words, to_top), 16);
  }

  static ALWAYS_INLINE __m512i column_indexes(const uint8_t* pairs, size_t c) {
    const size_t after = c / 8 * 8 + (c + 1) % 8;
    const __m256i here = pair_bytes(pairs, c), there = pair_bytes(pairs, after);
    const __m256i first = _mm256_and_si256(_mm256_srli_epi32(here, 2), _mm256_set1_epi32(15));
    const __m256i low = _mm256_and_si256(_mm256_srli_epi32(here, 6), _mm256_set1_epi32(3));
    const __m256i high = _mm256_and_si256(_mm256_slli_epi32(there, 2), _mm256_set1_epi32(12));
    const __m512i both = _mm512_inserti64x4(_mm512_castsi256_si512(first), _mm256_or_si256(low, high), 1);
    const __m512i by_row = _mm512_setr_epi32(0, 8, 1, 9, 2, 10, 3, 11, 4, 12, 5, 13, 6, 14, 7, 15);
    return _mm512_permutexvar_epi32(by_row, both);
  }
  // Byte c of each pair of rows, and others above it.
  static ALWAYS_INLINE __m256i pair_bytes(const uint8_t* pairs, size_t c) {
    const __m256i places = _mm256_setr_epi32(0, 64, 128, 192, 256, 320, 384, 448);
    const __m256i fours = _mm256_i32gather_epi32(reinterpret_cast<const int*>(pairs + c / 4 * 4), places, 1);
    return _mm256_srl_epi32(fours, _mm_cvtsi32_si128(8 * int(c % 4)));
  }

  // All 64 columns, fours of them transposed at a time. A code at the top of 32 bits is 2^24 times what it is.
  static ALWAYS_INLINE void read_step(const int8_t* tile, __m512 scale, float* out) {
    __m512i fours[16];
#pragma GCC unroll 16
    for (size_t r = 0; r < 16; ++r) fours[r] = _mm512_load_si512(tile + r * kRowBytes);
    transpose_words(fours);
    const __m512 share = _mm512_mul_ps(scale, _mm512_set1_ps(0x1p-24f));
#pragma GCC unroll 16
    for (size_t i = 0; i < 16; ++i, out += 4 * kPanelRows) {
#pragma GCC unroll 4
      for (int k = 0; k < 4; ++k) {
        const __m512i place = _mm512_set4_epi32(
            int(0x0c808080u + unsigned(k) * 0x01000000u), int(0x08808080u + unsigned(k) * 0x01000000u),
            int(0x04808080u + unsigned(k) * 0x01000000u), int(0x00808080u + unsigned(k) * 0x01000000u));
        const __m512i at_top = _mm512_shuffle_epi8(fours[i], place);
        _mm512_storeu_ps(out + k * int(kPanelRows), _mm512_mul_ps(_mm512_cvtepi32_ps(at_top), share));
      }
    }
  }
};

}  // namespace quire
