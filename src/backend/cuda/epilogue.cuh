#pragma once

#include <cstdint>

#include "backend/cuda/product_outputs.h"

// How products end. The kernels hold the 16 rows of a tile for a token in two ways; an epilogue is written once for
// both and gives the same bits.

namespace quire::cuda {

// One row in each lane: row lane % 16. Two tiles, or two tokens, side by side in a warp.
struct RowPerLane {
  static constexpr int kRows = 1;
  __device__ __forceinline__ static uint32_t row(uint32_t lane, int) { return lane % 16; }
};

// Two rows in each lane: rows lane / 4 and lane / 4 + 8; lane % 4 are different tokens.
struct TwoRowsPerLane {
  static constexpr int kRows = 2;
  __device__ __forceinline__ static uint32_t row(uint32_t lane, int i) { return lane / 4 + 8 * i; }
};

// Where a lane's numbers belong. All lanes of a warp finish together; those with an invalid token write nothing.
struct Spot {
  uint32_t tile_row;  // first row of the tile of 16
  uint32_t rows;      // of the weight: what is at or above is padding
  uint32_t token;
  bool valid;
};

template <class Spread>
__device__ __forceinline__ void finish(const StoreRows& output, const Spot& spot, uint32_t lane,
                                       const float (&y)[Spread::kRows]) {
#pragma unroll
  for (int i = 0; i < Spread::kRows; ++i) {
    const uint32_t row = spot.tile_row + Spread::row(lane, i);
    if (!spot.valid || row >= spot.rows) continue;
    const float value = output.bias != nullptr ? __fadd_rn(y[i], output.bias[row]) : y[i];
    output.out[spot.token * output.stride + row] = value;
  }
}

}  // namespace quire::cuda
