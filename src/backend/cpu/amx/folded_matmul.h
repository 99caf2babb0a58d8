#pragma once

#include "backend/cpu/matmul/panel_outliers.h"

// Products of types in blocks of 256 by instructions that multiply tiles of int8, but for what a machine does itself. The arithmetic is that
// of all sets (docs/decisions, 5): in a block of 256 columns everything is a whole number, and so the same however it is added up.
//
// A tile instruction adds 64 columns at a time and cannot scale in between, so a code is multiplied with its sub-block's scale when a panel is
// opened. What that comes to has up to 14 bits and is kept as two planes of bytes; a block's sum is that of the low plane, and 2^n times that
// of the high one. Only these two are stored and scaled, once for 256 columns.
//
// Tiles of activations are [16 tokens][64 columns], those of weights [16][16 rows][4 columns], and so tiles of sums are [16 tokens][16 rows].

namespace quire {

inline constexpr size_t kFoldedLeastTokens = 8;  // for fewer, vectors are as fast
inline constexpr size_t kFoldedStreamTiles =
    2;  // up to so many tiles of tokens, opening takes turns with products
inline constexpr size_t kFoldedCols = 256;     // of a block
inline constexpr size_t kFoldedStepCols = 64;  // multiplied at a time
inline constexpr size_t kFoldedSteps = kFoldedCols / kFoldedStepCols;
inline constexpr size_t kFoldedTokens = kInputTileTokens;  // of a tile

// A block of sixteen tokens' activations. Those of a tile of tokens follow each other.
struct alignas(64) FoldedInput {
  int8_t values[kFoldedSteps][kFoldedTokens][kFoldedStepCols];
  float scales[kFoldedTokens];
  int16_t sums32[kFoldedTokens][kFoldedCols / 32], sums16[kFoldedTokens][kFoldedCols / 16];  // as in Q8Row
};

// The codes of a block of a panel, open.
struct alignas(64) FoldedPlanes {
  uint8_t low[kFoldedSteps][kFoldedStepCols * kPanelRows], high[kFoldedSteps][kFoldedStepCols * kPanelRows];
};

// What its sums are scaled with.
struct alignas(64) FoldedScales {
  float scales[kPanelRows], min_scales[kPanelRows];
  int16_t sub_mins[kFoldedCols / 32][kPanelRows][2];  // of two sub-blocks
};

using FoldedInts = int32_t[kFoldedTokens][kPanelRows];

// Sums of a block of a panel and some tiles of tokens that are stored, and not scaled until the products of the next block are under way: vectors
// would wait for tiles.
struct FoldedWaiting {
  const FoldedScales* scales;  // null: none waits
  const FoldedInput* inputs[kFoldedStreamTiles];
  float (*sums)[kPanelRows];  // [tokens][rows]: added to
};

// A thread's own.
struct alignas(64) FoldedScratch {
  FoldedPlanes planes;
  FoldedScales scales[2];                  // in turns
  FoldedInts ints[kFoldedStreamTiles][2];  // low and high
  FoldedWaiting waiting;
};

// An open block and a tile of tokens, of many.
struct FoldedTask {
  const FoldedInput* input;
  const FoldedInput* next_input;  // what comes after it, to be fetched
  float (*sums)[kPanelRows];
};

// A block and all tiles of tokens, which are few. Its first two steps are open already; meanwhile the others are opened, and then the first two of
// the next block, in the place of what has been multiplied: so all that a thread works on is half of a first-level cache.
struct FoldedStream {
  const uint8_t *block, *next_block;                   // packed; the last has none after it
  const FoldedInput* inputs[kFoldedStreamTiles];       // by tile
  const FoldedInput* next_inputs[kFoldedStreamTiles];  // of the next block, to be fetched
  FoldedScales* scales;                                // its own, which are opened too
  float (*sums)[kPanelRows];
};

struct FoldedKernels {
  size_t block_bytes;  // of a packed block
  void (*configure)();
  void (*release)();
  void (*open)(const uint8_t* block, FoldedScratch& scratch);  // with the first of the scales
  void (*multiply)(const FoldedTask& task, FoldedScratch& scratch);
  void (*finish)(FoldedScratch& scratch);  // scales what waits
  void (*open_start)(const uint8_t* block,
                     FoldedScratch& scratch);  // what FoldedStream wants of the first block
  void (*stream[kFoldedStreamTiles])(const FoldedStream& block,
                                     FoldedScratch& scratch);  // by tiles, less one
  void (*finish_stream[kFoldedStreamTiles])(FoldedScratch& scratch);
  OutlierKernels outliers;
  InputFormat inputs;
};

// REQUIRES: the weight is packed as panel_format does it; there are kFoldedLeastTokens tokens or more.
void multiply_folded(const MatmulArgs& args, const FoldedKernels& kernels);

}  // namespace quire
