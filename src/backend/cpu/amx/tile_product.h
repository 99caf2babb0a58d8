#pragma once

#include "backend/cpu/amx/tile_matmul.h"
#include "backend/cpu/panel_scales.h"

// The product of one or two open panels of blocks of 32 and one or two tiles of tokens, by a machine that has eight
// tiles and vectors of sixteen floats:
//
//   struct Machine {
//     template <size_t kTile> static void zero();
//     template <size_t kTile> static void load(const void* rows, size_t stride_bytes);
//     template <size_t kTile> static void store(void* rows, size_t stride_bytes);
//     template <size_t kSums, size_t kInputs, size_t kCodes> static void multiply();  // sums += inputs * codes
//     struct Lanes {
//       static Lanes load(const float*);
//       static Lanes load_moved(const int32_t*);  // kMagicBits added, as floats
//       static Lanes broadcast(const float*);
//       void store(float*) const;
//     };
//     static Lanes multiply_add(a, b, c);  // a * b + c, rounded once
//     static Lanes subtract(a, b);
//   };
//
// It comes from an unnamed namespace, and so what is made of it here stays in the file it is compiled for.
//
// Tiles 0 to 3 hold prefix sums, [tokens][16 rows]; 4 and 5 a sub-block of the tokens' activations, [tokens][kSub]; 6 and
// 7 the same columns of the panels' codes, [kSub / 4][16 rows][4]. After each sub-block the sums are stored; after some
// sub-blocks, a stage, vectors scale them. The two take turns: with two threads on a core, vector instructions between a
// product and its store make a block take half as long again or more, as if tiles were not renamed there.

namespace quire {

inline constexpr size_t kFirstInputTile = 4;
inline constexpr size_t kFirstCodeTile = 6;

struct TileShape {
  size_t rows, row_bytes;
};
constexpr ALWAYS_INLINE TileShape tile_shape(size_t tile, size_t tokens, size_t sub) {
  if (tile < kFirstInputTile) return {tokens, kPanelRows * sizeof(int32_t)};
  if (tile < kFirstCodeTile) return {tokens, sub};
  return {sub / 4, kPanelRows * 4};
}

// Scales one tile's sums of a stage: kSubs sub-blocks, which are groups of kGroupSubs; the last may be shorter. `starts` are
// from the stage's first group on, `differences` from its first sub-block on, and `factors` are the first token's scales
// from the first group on. Its parameters are few enough for registers: handed over in memory, they cost a fifth of the
// product.
template <class Machine, size_t kGroupSubs, size_t kSubs>
__attribute__((noinline)) void scale_groups(const TileInts* prefixes, const float* starts,
                                            const float* differences, const std::byte* factors,
                                            size_t input_stride_bytes, size_t tokens, TileFloats* sums) {
  using Lanes = typename Machine::Lanes;
  constexpr size_t kGroups = (kSubs + kGroupSubs - 1) / kGroupSubs;
  Lanes group_starts[kGroups], sub_differences[kSubs];
#pragma GCC unroll 4
  for (size_t g = 0; g < kGroups; ++g) group_starts[g] = Lanes::load(starts + g * kPanelRows);
#pragma GCC unroll 4
  for (size_t s = 0; s < kSubs; ++s) sub_differences[s] = Lanes::load(differences + s * kPanelRows);
#pragma GCC unroll 4
  for (size_t t = 0; t < tokens; ++t) {
    const float* own = reinterpret_cast<const float*>(factors + t * input_stride_bytes);
    Lanes sum = Lanes::load((*sums)[t]), scaled = group_starts[0];
#pragma GCC unroll 4
    for (size_t s = 0; s < kSubs; ++s) {
      if (s % kGroupSubs == 0) scaled = group_starts[s / kGroupSubs];
      scaled = Machine::multiply_add(Lanes::load_moved(prefixes[s][t]), sub_differences[s], scaled);
      if (s + 1 < kSubs && (s + 1) % kGroupSubs != 0) continue;
      sum = Machine::multiply_add(scaled, Lanes::broadcast(own + s / kGroupSubs), sum);
    }
    sum.store((*sums)[t]);
  }
}

// Adds the minimums' share of kCount tokens: eight chains hide the latency of an addition. `sums` are the first token's
// sums of activations by sub-block.
template <class Machine, size_t kCount>
void add_mins(const float* mins, size_t subs, const std::byte* sums, size_t input_stride_bytes,
              float (*out)[kPanelRows]) {
  using Lanes = typename Machine::Lanes;
  Lanes min_sums[kCount];
#pragma GCC unroll 8
  for (size_t t = 0; t < kCount; ++t) min_sums[t] = Lanes::load(out[t]);
  for (size_t s = 0; s < subs; ++s) {
    const Lanes min = Lanes::load(mins + s * kPanelRows);
#pragma GCC unroll 8
    for (size_t t = 0; t < kCount; ++t) {
      const float* sum = reinterpret_cast<const float*>(sums + t * input_stride_bytes) + s;
      min_sums[t] = Machine::multiply_add(min, Lanes::broadcast(sum), min_sums[t]);
    }
  }
#pragma GCC unroll 8
  for (size_t t = 0; t < kCount; ++t) min_sums[t].store(out[t]);
}

template <class Machine, ActivationForm kForm, bool kHasMin, size_t kPanels, size_t kTokenTiles>
class TileProduct {
 public:
  using Lanes = typename Machine::Lanes;
  static constexpr size_t kSub = 32;
  static constexpr size_t kGroup = group_values(kForm);
  static constexpr size_t kGroupSubs = kGroup / kSub;
  static_assert(kStageSubs % kGroupSubs == 0);

  TileProduct(const TileBlock& block, TileScratch& scratch, TileResults& results)
      : block_(block),
        scratch_(scratch),
        results_(results),
        subs_((block.col_end - block.col_begin) / kSub),
        next_rows_((kTokenTiles * block.tokens + subs_ - 1) / subs_) {}

  void run() {
    size_t first = 0;  // sub-block of the stage
    for (; first + kStageSubs <= subs_; first += kStageSubs) {
#pragma GCC unroll 2
      for (size_t s = 0; s < kStageSubs; ++s) step(first + s);
      for_tiles([&](size_t tile) { scale<kStageSubs>(tile, first); });
    }
    for (size_t sub = first; sub < subs_; ++sub) step(sub);
    scale_rest<kStageSubs - 1>(first);
    if constexpr (kHasMin) for_tiles([&](size_t tile) { add_tile_mins(tile); });
  }

 private:
  static constexpr bool has_tile(size_t tile) {
    return tile / 2 < kPanels && tile % 2 < kTokenTiles;
  }
  template <class Function>
  static ALWAYS_INLINE void for_tiles(const Function& function) {
    for (size_t tile = 0; tile < kTileSums; ++tile) {
      if (has_tile(tile)) function(tile);
    }
  }

  ALWAYS_INLINE void step(size_t sub) {
    load_operands(sub);
    const bool begins_group = sub % kGroupSubs == 0;
    multiply<0>(begins_group);
    multiply<1>(begins_group);
    multiply<2>(begins_group);
    multiply<3>(begins_group);
    prefetch_next(sub);
    store<0>(sub);
    store<1>(sub);
    store<2>(sub);
    store<3>(sub);
  }

  // Brings what the next tokens' rows have in as many columns to the first-level cache, a part with each sub-block:
  // nothing else fetches it in time.
  ALWAYS_INLINE void prefetch_next(size_t sub) const {
    const std::byte* row = block_.next_inputs + sub * next_rows_ * block_.input_stride_bytes;
    const size_t scale = block_.cols + block_.next_col / kGroup * sizeof(float);
    for (size_t i = 0; i < next_rows_; ++i, row += block_.input_stride_bytes) {
#pragma GCC unroll 4
      for (size_t c = 0; c < kChunkCols; c += 64) __builtin_prefetch(row + block_.next_col + c);
      __builtin_prefetch(row + scale);
    }
  }

  ALWAYS_INLINE void load_operands(size_t sub) const {
    const size_t column = sub * kSub, stride = block_.input_stride_bytes;
    const std::byte* const* inputs = block_.inputs;
    Machine::template load<kFirstCodeTile>(block_.panels[0].codes + kPanelRows * column, kPanelRows * 4);
    Machine::template load<kFirstInputTile>(inputs[0] + block_.col_begin + column, stride);
    if constexpr (kTokenTiles == 2) {
      Machine::template load<kFirstInputTile + 1>(inputs[1] + block_.col_begin + column, stride);
    }
    if constexpr (kPanels == 2) {
      const uint8_t* codes = block_.panels[1].codes + kPanelRows * column;
      Machine::template load<kFirstCodeTile + 1>(codes, kPanelRows * 4);
    }
  }

  template <size_t kTile>
  ALWAYS_INLINE void multiply(bool begins_group) const {
    if constexpr (has_tile(kTile)) {
      if (begins_group) Machine::template zero<kTile>();
      Machine::template multiply<kTile, kFirstInputTile + kTile % 2, kFirstCodeTile + kTile / 2>();
    }
  }

  TileInts* prefixes(size_t tile, size_t sub) const {
    return &scratch_.prefixes[tile][sub % kStageSubs];
  }

  template <size_t kTile>
  ALWAYS_INLINE void store(size_t sub) const {
    if constexpr (has_tile(kTile)) {
      Machine::template store<kTile>(prefixes(kTile, sub), sizeof(TileInts) / kTileTokens);
    }
  }

  Q8Row input(size_t tile) const {
    return {block_.inputs[tile % 2], block_.cols, kGroup};
  }

  // kCount sub-blocks of a stage.
  template <size_t kCount>
  ALWAYS_INLINE void scale(size_t tile, size_t first) const {
    const OpenPanel& panel = block_.panels[tile / 2];
    const size_t group = first / kGroupSubs;
    const float* factors = input(tile).scales + block_.col_begin / kGroup + group;
    scale_groups<Machine, kGroupSubs, kCount>(prefixes(tile, first), panel.starts + group * kPanelRows,
                                              panel.differences + first * kPanelRows,
                                              reinterpret_cast<const std::byte*>(factors),
                                              block_.input_stride_bytes, block_.tokens, &results_.sums[tile]);
  }

  // The sub-blocks after the last whole stage, kMost at most.
  template <size_t kMost>
  void scale_rest(size_t first) const {
    if constexpr (kMost > 0) {
      if (subs_ - first < kMost) return scale_rest<kMost - 1>(first);
      for_tiles([&](size_t tile) { scale<kMost>(tile, first); });
    }
  }

  void add_tile_mins(size_t tile) const {
    const Q8Row row = input(tile);
    const std::byte* sums = reinterpret_cast<const std::byte*>(row.scaled_sums + block_.col_begin / kSub);
    const float* mins = block_.panels[tile / 2].mins;
    TileFloats& out = results_.min_sums[tile];
    const size_t stride = block_.input_stride_bytes;
    size_t t = 0;
    for (; t + kLeastTileTokens <= block_.tokens; t += kLeastTileTokens) {
      add_mins<Machine, kLeastTileTokens>(mins, subs_, sums + t * stride, stride, out + t);
    }
    for (; t < block_.tokens; ++t) add_mins<Machine, 1>(mins, subs_, sums + t * stride, stride, out + t);
  }

  const TileBlock& block_;
  TileScratch& scratch_;
  TileResults& results_;
  const size_t subs_;
  const size_t next_rows_;  // fetched with each sub-block
};

template <class Machine, ActivationForm kForm, bool kHasMin, size_t kPanels, size_t kTokenTiles>
void multiply_block(const TileBlock& block, TileScratch& scratch, TileResults& results) {
  TileProduct<Machine, kForm, kHasMin, kPanels, kTokenTiles>(block, scratch, results).run();
}

}  // namespace quire
