#pragma once

#include "backend/cpu/amx/bf16_tile_matmul.h"
#include "backend/cpu/matmul/stream_fetch.h"

// The product of one or two panels and one or two tiles of tokens, by a machine that has eight tiles:
//
//   struct Machine {
//     static void configure(size_t tokens);  // each tile as bf16_tile_rows says, with rows of 64 bytes
//     static void release();
//     template <size_t kTile> static void zero();
//     template <size_t kTile> static void load(const void* rows, size_t stride_bytes);
//     template <size_t kTile> static void store(void* rows, size_t stride_bytes);
//     template <size_t kSums, size_t kInputs, size_t kWeights> static void multiply();  // sums += inputs * weights
//   };
//
// Tiles 0 to 3 hold sums (2 * panel + tile of tokens), [tokens][16 rows] of f32; 4 some columns of a tile of tokens, [tokens][32]
// of bf16; 5 the same columns of a panel, [16 pairs of columns][16 rows][2]. Two operands, even though one is loaded twice: a
// thread that shares its core has hardly more tiles than it can name, and when all are in use each load waits for one.

namespace quire {

constexpr size_t bf16_tile_rows(size_t tile, size_t tokens) {
  return tile < 5 ? tokens : 16;
}

static inline __attribute__((always_inline)) void prefetch_bf16_tile(const std::byte* tile) {
#pragma GCC unroll 16
  for (size_t line = 0; line < kBf16TileBytes; line += 64) __builtin_prefetch(tile + line);
}

template <class Machine, size_t kPanels, size_t kTiles, bool kFetch>
void multiply_bf16_tile_block(const Bf16TileBlock& block) {
  constexpr size_t kRowBytes = 64;
  constexpr size_t kInputsAheadBytes = 2048;
  constexpr size_t kInputs = 4, kWeights = 5;
  if (block.is_first) {
    Machine::template zero<0>();
    if constexpr (kTiles == 2) Machine::template zero<1>();
    if constexpr (kPanels == 2) Machine::template zero<2>();
    if constexpr (kPanels == 2 && kTiles == 2) Machine::template zero<3>();
  } else {
    Machine::template load<0>(block.sums[0][0], kRowBytes);
    if constexpr (kTiles == 2) Machine::template load<1>(block.sums[0][1], kRowBytes);
    if constexpr (kPanels == 2) Machine::template load<2>(block.sums[1][0], kRowBytes);
    if constexpr (kPanels == 2 && kTiles == 2) Machine::template load<3>(block.sums[1][1], kRowBytes);
  }
  const std::byte *first = block.panels[0], *second = block.panels[1];
  const std::byte *inputs = block.inputs[0], *more_inputs = block.inputs[1];
  const size_t stride = block.input_stride_bytes;
  for (size_t step = 0; step < block.steps; ++step) {
    if constexpr (kFetch) {
      fetch_ahead<PlainTileFetch, kBf16TileBytes>(first);
      if constexpr (kPanels == 2) fetch_ahead<PlainTileFetch, kBf16TileBytes>(second);
    }
    if constexpr (kTiles == 2) {  // packed ones
      prefetch_bf16_tile(inputs + kInputsAheadBytes);
      prefetch_bf16_tile(more_inputs + kInputsAheadBytes);
    }
    Machine::template load<kWeights>(first, kRowBytes);
    Machine::template load<kInputs>(inputs, stride);
    Machine::template multiply<0, kInputs, kWeights>();
    if constexpr (kTiles == 2) {
      Machine::template load<kInputs>(more_inputs, stride);
      Machine::template multiply<1, kInputs, kWeights>();
    }
    if constexpr (kPanels == 2) {
      Machine::template load<kWeights>(second, kRowBytes);
      if constexpr (kTiles == 2) {
        Machine::template multiply<3, kInputs, kWeights>();
        Machine::template load<kInputs>(inputs, stride);
      }
      Machine::template multiply<2, kInputs, kWeights>();
      second += kBf16TileBytes;
    }
    first += kBf16TileBytes;
    inputs += block.input_step_bytes;
    more_inputs += block.input_step_bytes;
  }
  Machine::template store<0>(block.sums[0][0], kRowBytes);
  if constexpr (kTiles == 2) Machine::template store<1>(block.sums[0][1], kRowBytes);
  if constexpr (kPanels == 2) Machine::template store<2>(block.sums[1][0], kRowBytes);
  if constexpr (kPanels == 2 && kTiles == 2) Machine::template store<3>(block.sums[1][1], kRowBytes);
}

template <class Machine>
constexpr Bf16TileKernels bf16_tile_kernels() {
  return {
      .configure = Machine::configure,
      .release = Machine::release,
      .multiply = {{multiply_bf16_tile_block<Machine, 1, 1, false>,
                    multiply_bf16_tile_block<Machine, 1, 2, false>},
                   {multiply_bf16_tile_block<Machine, 2, 1, false>,
                    multiply_bf16_tile_block<Machine, 2, 2, false>}},
      .fetch_and_multiply = {
          {multiply_bf16_tile_block<Machine, 1, 1, true>, multiply_bf16_tile_block<Machine, 1, 2, true>},
          {multiply_bf16_tile_block<Machine, 2, 1, true>, multiply_bf16_tile_block<Machine, 2, 2, true>}}};
}

}  // namespace quire
