#pragma once

#include "backend/cpu/panel_matmul.h"

// Products with weights in panels by instructions that multiply tiles, but for what a machine does itself: it opens a
// panel, and multiplies one or two of them with one or two tiles of tokens. The machine is AMX, or in a test plain code.

namespace quire {

inline constexpr size_t kTileTokens = 16;      // at most; every tile of a product has as many
inline constexpr size_t kLeastTileTokens = 8;  // for fewer, vectors are as fast
inline constexpr size_t kTileSums = 4;         // tiles of sums: 2 * panel + tile of tokens

// Sub-blocks between which the integer sums wait for their scales. Their number is that of the tiles of sums, so that
// beside each sub-block's products the sums of one tile are scaled.
inline constexpr size_t kStageSubs = kTileSums;

// One tile of sums, [tokens][rows].
using TileInts = int32_t[kTileTokens][kPanelRows];
using TileFloats = float[kTileTokens][kPanelRows];

// What a block of tiles is computed in: about what the first-level cache of such machines holds.
struct alignas(64) TileScratch {
  TileInts prefixes[2][kTileSums]
                   [kStageSubs];  // of this stage and the one before: kMagicBits and the prefix sums
  TileFloats scaled[kTileSums];   // of a group that is longer than a stage
  TileFloats sums[kTileSums];     // in the end, the products
  TileFloats min_sums[kTileSums];
};

// One or two panels and one or two tiles of tokens, with activations in rows of Q8Row.
struct TileBlock {
  OpenPanel panels[2];         // codes as they are, signed
  const std::byte* inputs[2];  // the first row of a tile's tokens
  size_t input_stride_bytes;
  size_t tokens;  // of each tile
  size_t cols;
};

struct TileKernels {
  using Multiply = void (*)(const TileBlock& block, TileScratch& scratch);

  size_t block_bytes, block_values;  // of a packed block
  size_t sub, group;                 // values that share a scale: of the weights, of the activations
  void (*open)(const uint8_t* panel, size_t cols, const OpenPanel& out);
  // Sets up the tiles of this thread for so many tokens each. They are given back at the end of a call: while they are
  // in use, the thread costs more to switch from and to.
  void (*configure)(size_t tokens);
  void (*release)();
  Multiply multiply[2][2];  // by panels less one, and tiles of tokens less one
};

// REQUIRES: the weight is packed as panel_format does it; there are kLeastTileTokens tokens or more.
void multiply_tiles(const MatmulArgs& args, const TileKernels& kernels);

}  // namespace quire
