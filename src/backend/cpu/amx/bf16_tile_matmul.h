#pragma once

#include "backend/cpu/matmul/bf16_panels.h"

// Products with bf16 weights by instructions that multiply tiles of bf16, but for what a machine does itself: it multiplies
// one or two panels with one or two tiles of tokens. The machine is AMX, or in a test plain code. An element is the sum of
// its tiles' products in the order of columns, whatever the number of tokens.

namespace quire {

inline constexpr size_t kBf16TileTokens = kInputTileTokens;  // at most; every tile of a call has as many
inline constexpr size_t kBf16TileBytes = kBf16Cols * kPanelRows * sizeof(uint16_t);  // of weights

// One tile of sums, [tokens][rows].
using Bf16TileSums = float[kBf16TileTokens][kPanelRows];

// Some columns of one or two panels and of one or two tiles of tokens.
struct Bf16TileBlock {
  const std::byte* panels[2];  // tiles of weights one after the other, as bf16_panel_format<2> has them
  const std::byte* inputs[2];  // a tile's tokens
  size_t input_stride_bytes;   // from a token to the next
  size_t input_step_bytes;     // and from some columns to the next
  size_t steps;                // of kBf16Cols columns
  bool is_first;               // whose sums begin at zero
  Bf16TileSums* sums[2][2];    // by panel and tile of tokens
};

struct Bf16TileKernels {
  using Multiply = void (*)(const Bf16TileBlock& block);

  // Sets up the tiles of this thread for so many tokens each, and gives them back.
  void (*configure)(size_t tokens);
  void (*release)();
  // By panels less one, and tiles of tokens less one.
  Multiply multiply[2][2];
  Multiply fetch_and_multiply[2][2];  // for weights that are not in a cache
};

// Tokens for two tiles or more: [steps of kBf16Cols columns][16 tokens][kBf16Cols].
InputFormat bf16_input_format();

// REQUIRES: the weight is packed as bf16_panel_format<2> does it.
void multiply_bf16_tiles(const MatmulArgs& args, const Bf16TileKernels& kernels);

}  // namespace quire
