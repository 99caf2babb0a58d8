#pragma once

#include "backend/cpu/matmul/grouped_weights.h"

// Products with grouped weights (grouped_weights.h), but for what a machine does itself: AVX-512, and tiles of int8, which are those
// of AMX or in a test plain code. The sum over a group is a whole number, and so the same however it is added up: one token goes
// through vectors, more go through tiles.
//
// Tiles of weights are [16 rows][64 columns]. Activations for tiles are packed, 16 tokens at a time:
//
//   i8 values[steps of 64 columns][16][16 tokens][4]   columns 4 i to 4 i + 3 of a step at [i]
//   f32 scales[groups][16 tokens], in whole spans
//   GroupedUses uses[spans]
//
// and so tiles of sums are [16 rows][16 tokens].

namespace quire {

inline constexpr size_t kGroupedTileTokens = kInputTileTokens;
// Columns of two panels that are opened and multiplied with all tokens of a share before the next ones are. Open, they stay in
// the first-level cache.
inline constexpr size_t kGroupedChunkSteps = 8;
inline constexpr size_t kGroupedStreamTiles =
    2;  // up to so many tiles of tokens, opening takes turns with products

// An outlier of a tile's token. Places are in bytes: of the token in products, [tokens][16 rows], and of the column in the weights of
// its group, [columns][16 rows].
struct GroupedUse {
  uint16_t token, column;
  float value;
};
// Those of a span, group by group. Within a group the first of each token come first, then the second of each, and so on: sums that
// follow each other do not wait for each other.
struct alignas(64) GroupedUses {
  uint32_t ends[kOutlierSpan / kGroupedStepCols];  // of the groups
  GroupedUse uses[kGroupedTileTokens * most_outliers(128)];
};
static_assert(most_outliers(128) >= most_outliers(64) && most_outliers(128) >= most_outliers(256));

using GroupedSums = float[kPanelRows][kGroupedTileTokens];
using GroupedInts = int32_t[kPanelRows][kGroupedTileTokens];
using GroupedScales = float[kPanelRows];

// A thread's own.
struct alignas(64) GroupedScratch {
  // By panel: some columns opened, and their scales by group. While few tokens stream by, two halves take turns.
  int8_t open[2][kGroupedChunkSteps][kGroupedStepBytes];
  GroupedScales scales[2][kGroupedChunkSteps];
  GroupedInts ints[4];
};

// A tile of packed activations.
struct GroupedInput {
  const int8_t* values;
  const float* scales;
};

// One panel and one token.
struct GroupedOne {
  const uint8_t* panel;
  size_t steps;
  const int8_t* values;  // of whole steps
  const float* scales;   // by group
  // By group, what is added to the sum of products of weights that are 128 more than they are.
  const int32_t* corrections;
  // Of the token, by column, ascending: read while their steps are in the first-level cache.
  const uint32_t* outlier_cols;
  const float* outlier_values;
  const uint32_t* outlier_ends;          // by span
  float (*outlier_weights)[kPanelRows];  // room for as many
  float* out;
};

// One or two panels with all columns, and one or two tiles of tokens. When it is done, the first columns of the panels that come
// next are open in the scratch.
struct GroupedStream {
  const uint8_t* panels[2];
  const uint8_t* next[2];  // null: there are none
  size_t steps;
  GroupedInput inputs[kGroupedStreamTiles];
  size_t half;  // of the scratch, where the first columns are; the kernel says where the next ones are
  GroupedSums* sums[2][kGroupedStreamTiles];
};

// Some columns of one or two panels, which are open in the scratch, and one tile of tokens. Adds to the sums.
struct GroupedChunk {
  const uint8_t* panels[2];  // of these columns
  size_t steps;
  GroupedInput input;         // of these columns
  const int8_t* next_values;  // where the tokens after these begin, to be fetched
  GroupedSums* sums[2];
};

struct GroupedKernels {
  size_t group;
  size_t start_bytes, step_bytes;  // of a packed block: what stands before its steps, and one of them
  void (*configure)();
  void (*release)();
  void (*multiply_one)(const GroupedOne& one);
  // By panels less one, and tiles less one.
  void (*open_first[2])(GroupedStream& stream, GroupedScratch& scratch);
  void (*stream[2][kGroupedStreamTiles])(GroupedStream& stream, GroupedScratch& scratch);
  void (*open_chunk[2])(const GroupedChunk& chunk, GroupedScratch& scratch);
  void (*multiply_chunk[2])(const GroupedChunk& chunk, GroupedScratch& scratch);
  // Adds what the outliers of some tiles come to to their products with a panel. `tile`: the first of them.
  void (*add_outliers)(const uint8_t* panel, size_t cols, const std::byte* tile, size_t tiles,
                       float (*products)[kPanelRows]);
  // [tokens][rows]
  void (*transpose)(const GroupedSums& sums, float (*out)[kPanelRows]);
  InputFormat inputs;
};

// REQUIRES: the weight is packed as grouped_panel_format does it.
void multiply_grouped(const MatmulArgs& args, const GroupedKernels& kernels);

}  // namespace quire
