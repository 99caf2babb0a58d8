#pragma once

#include "backend/cpu/matmul/panel_matmul.h"

// Products with weights in panels of blocks of 256, of types that are not grouped (grouped_weights.h), by instructions that multiply
// tiles, but for what a machine does itself: it opens a panel, and multiplies one or two of them with one or two tiles of tokens.
// The machine is AMX, or in a test plain code.

namespace quire {

inline constexpr size_t kTileTokens = 16;      // at most; every tile of a product has as many
inline constexpr size_t kLeastTileTokens = 8;  // for fewer, vectors are as fast
inline constexpr size_t kTileSums = 4;         // tiles of sums: 2 * plane + tile of tokens

// Columns of panels that are opened and multiplied with all tokens before the next ones are: a block.
inline constexpr size_t kChunkCols = 256;

// One tile of sums, [tokens][rows].
using TileInts = int32_t[kTileTokens][kPanelRows];
using TileFloats = float[kTileTokens][kPanelRows];

struct alignas(64) TileScratch {
  TileInts sums[kTileSums][2];  // of each panel
};

// What the columns so far of a block come to.
struct alignas(64) TileResults {
  TileFloats sums[4];  // 2 * panel + tile of tokens
};

// Some columns of one or two panels and of one or two tiles of tokens, with activations in rows of Q8Row.
struct TileBlock {
  OpenPanel panels[2];         // of these columns only; codes as they are, signed
  const std::byte* inputs[2];  // the first row of a tile's tokens
  size_t input_stride_bytes;
  size_t tokens;  // of each tile
  size_t cols;    // of whole rows
  size_t col_begin, col_end;
  const std::byte* next_inputs;  // the first row of the tokens that come next,
  size_t next_col;               // and where among their columns
};

struct TileKernels {
  using Multiply = void (*)(const TileBlock& block, TileScratch& scratch, TileResults& results);

  size_t block_bytes, block_values;  // of a packed block
  size_t sub, group;                 // values that share a scale: of the weights, of the activations
  size_t planes;                     // of codes in an open panel
  void (*open)(const uint8_t* panel, size_t cols, const OpenPanel& out);
  // Sets up the tiles of this thread for so many tokens each. They are given back at the end of a call: while they are
  // in use, the thread costs more to switch from and to.
  void (*configure)(size_t tokens);
  void (*release)();
  OutlierKernels outliers;
  Multiply multiply[2][2];  // adds to the results; by panels less one, and tiles of tokens less one
};

// REQUIRES: the weight is packed as panel_format does it; there are kLeastTileTokens tokens or more.
void multiply_tiles(const MatmulArgs& args, const TileKernels& kernels);

}  // namespace quire
