#pragma once

#include "backend/cpu/amx/tile_matmul.h"
#include "backend/cpu/matmul/panel_scales.h"

// The product of one or two open panels of blocks of 256 and one or two tiles of tokens. A sub-block's scale is a whole
// number, and a code times it has 14 bits at most, so a panel is opened to such products: a plane of their low seven bits
// and a plane of what is above, both int8. Then tiles add over all 256 columns, 64 at a time, and only two sums, of the
// low and of the high plane, are left to scale: sum = low + 128 * high, exactly.
//
// `Machine` has eight tiles and vectors of sixteen floats:
//
//   struct Machine {
//     template <size_t kTile> static void zero();
//     template <size_t kTile> static void load(const void* rows, size_t stride_bytes);
//     template <size_t kTile> static void store(void* rows, size_t stride_bytes);
//     template <size_t kSums, size_t kInputs, size_t kCodes> static void multiply();  // sums += inputs * codes
//     struct Lanes {
//       static Lanes load(const float*);
//       static Lanes broadcast(const float*);
//       void store(float*) const;
//     };
//     struct Pairs { static Pairs load(const int16_t*); };  // two numbers for each of sixteen rows
//     struct Ints { static Ints zero(); };                  // one
//     static Ints add_products(Ints sum, Pairs, const int16_t* two);  // of each row's two with these
//     static Lanes to_floats(Ints);
//     static Lanes to_floats(const int32_t* low, const int32_t* high);  // low + 128 * high
//     static Lanes multiply(a, b);
//     static Lanes multiply_add(a, b, c);       // a * b + c, rounded once
//     static Lanes multiply_subtract(a, b, c);  // c - a * b, rounded once
//   };
//
// It comes from an unnamed namespace, and so what is made of it here stays in the file it is compiled for.
//
// Tiles 0 and 1 hold the low sums of the tokens' tiles, 2 and 3 the high ones, [tokens][16 rows]; 4 a tile of activations, [tokens][64],
// and 5 a plane's tile, [16][16 rows][4]. Two operands, even though one is loaded twice: see bf16_tile_product.h.

namespace quire {

inline constexpr size_t kFoldBits = 7;
inline constexpr size_t kFoldCols = 64;  // multiplied at a time

struct TileShape {
  size_t rows, row_bytes;
};
constexpr ALWAYS_INLINE TileShape tile_shape(size_t tile, size_t tokens) {
  return tile < 5 ? TileShape{tokens, 64} : TileShape{16, 64};
}

template <class Machine, size_t kSub, bool kHasMin, size_t kPanels, size_t kTokenTiles>
class FoldedProduct {
 public:
  using Lanes = typename Machine::Lanes;
  static constexpr size_t kBlock = 256;
  static_assert(kChunkCols == kBlock);  // what is opened at a time

  FoldedProduct(const TileBlock& block, TileScratch& scratch, TileResults& results)
      : block_(block), scratch_(scratch), results_(results) {}

  void run() {
    for (size_t p = 0; p < kPanels; ++p) multiply_panel(p);
    for (size_t p = 0; p < kPanels; ++p) {
      for (size_t i = 0; i < kTokenTiles; ++i) scale(p, i);
    }
  }

 private:
  static constexpr size_t kSteps = kBlock / kFoldCols;
  static constexpr size_t kNextRows = kTileTokens * kTokenTiles / (kSteps * kPanels);

  void multiply_panel(size_t p) const {
    zero<0>();
    zero<1>();
    zero<2>();
    zero<3>();
    const uint8_t* low = block_.panels[p].codes;
    const uint8_t* high = low + kPanelRows * kBlock;
#pragma GCC unroll 4
    for (size_t step = 0; step < kSteps; ++step) {
      const size_t at = step * kPanelRows * kFoldCols;
      load_inputs<0>(step * kFoldCols);
      Machine::template load<5>(low + at, kPanelRows * 4);
      multiply<0, 4, 5>();
      load_inputs<1>(step * kFoldCols);
      multiply<1, 4, 5>();
      Machine::template load<5>(high + at, kPanelRows * 4);
      multiply<3, 4, 5>();
      if constexpr (kTokenTiles == 2) load_inputs<0>(step * kFoldCols);
      multiply<2, 4, 5>();
      prefetch_next(p * kSteps + step);
    }
    store<0>(p);
    store<1>(p);
    store<2>(p);
    store<3>(p);
  }

  static constexpr bool has_tile(size_t tile) {
    return tile % 2 < kTokenTiles;
  }
  template <size_t kTile>
  ALWAYS_INLINE void zero() const {
    if constexpr (has_tile(kTile)) Machine::template zero<kTile>();
  }
  template <size_t kSums, size_t kInputs, size_t kCodes>
  ALWAYS_INLINE void multiply() const {
    if constexpr (has_tile(kSums)) Machine::template multiply<kSums, kInputs, kCodes>();
  }
  template <size_t kTile>
  ALWAYS_INLINE void store(size_t p) const {
    if constexpr (has_tile(kTile)) {
      Machine::template store<kTile>(scratch_.sums[kTile][p], sizeof(TileInts) / kTileTokens);
    }
  }
  template <size_t kTile>
  ALWAYS_INLINE void load_inputs(size_t column) const {
    if constexpr (kTile < kTokenTiles)
      Machine::template load<4>(block_.inputs[kTile] + block_.col_begin + column, block_.input_stride_bytes);
  }

  // Brings what the next tokens' rows have in as many columns to the first-level cache, a part with each step: nothing else fetches
  // it in time.
  ALWAYS_INLINE void prefetch_next(size_t step) const {
    const std::byte* row = block_.next_inputs + step * kNextRows * block_.input_stride_bytes;
    const size_t scale = block_.cols + block_.next_col / kBlock * sizeof(float);
    for (size_t i = 0; i < kNextRows; ++i, row += block_.input_stride_bytes) {
#pragma GCC unroll 4
      for (size_t c = 0; c < kBlock; c += 64) __builtin_prefetch(row + block_.next_col + c);
      __builtin_prefetch(row + scale);
    }
  }

  // The sums of a panel and a tile of tokens.
  void scale(size_t p, size_t i) const {
    constexpr size_t kSubs = kBlock / kSub;
    const OpenPanel& panel = block_.panels[p];
    const Q8Row row(block_.inputs[i], block_.cols, kBlock);
    const size_t block = block_.col_begin / kBlock;
    const std::byte* factors = reinterpret_cast<const std::byte*>(row.scales + block);
    const std::byte* sums =
        reinterpret_cast<const std::byte*>((kSub == 32 ? row.sums32 : row.sums16) + kSubs * block);
    const TileInts &low = scratch_.sums[i][p], &high = scratch_.sums[2 + i][p];
    TileFloats& results = results_.sums[2 * p + i];
    const Lanes scale = Lanes::load(panel.scales), min_scale = Lanes::load(panel.min_scales);
    typename Machine::Pairs mins[kSubs / 2];
    if constexpr (kHasMin) {
#pragma GCC unroll 8
      for (size_t j = 0; j < kSubs / 2; ++j)
        mins[j] = Machine::Pairs::load(panel.sub_mins + 2 * kPanelRows * j);
    }
#pragma GCC unroll 2
    for (size_t t = 0; t < block_.tokens; ++t) {
      Lanes scaled = Machine::multiply(Machine::to_floats(low[t], high[t]), scale);
      if constexpr (kHasMin) {
        const int16_t* own = reinterpret_cast<const int16_t*>(sums + t * block_.input_stride_bytes);
        typename Machine::Ints total = Machine::Ints::zero();
#pragma GCC unroll 8
        for (size_t j = 0; j < kSubs / 2; ++j) total = Machine::add_products(total, mins[j], own + 2 * j);
        scaled = Machine::multiply_subtract(Machine::to_floats(total), min_scale, scaled);
      }
      const float* factor = reinterpret_cast<const float*>(factors + t * block_.input_stride_bytes);
      Machine::multiply_add(scaled, Lanes::broadcast(factor), Lanes::load(results[t])).store(results[t]);
    }
  }

  const TileBlock& block_;
  TileScratch& scratch_;
  TileResults& results_;
};

template <class Machine, size_t kSub, bool kHasMin, size_t kPanels, size_t kTokenTiles>
void multiply_folded(const TileBlock& block, TileScratch& scratch, TileResults& results) {
  FoldedProduct<Machine, kSub, kHasMin, kPanels, kTokenTiles>(block, scratch, results).run();
}

}  // namespace quire
