#pragma once

#include "backend/cuda/dependent_launch.cuh"
#include "backend/cuda/matmul/dequantize.cuh"
#include "backend/cuda/matmul/epilogue.cuh"

// The inside of products on any architecture, with any number of tokens: a warp for each slice of a tile of 16 rows by 8
// or 32 tokens, straight from global memory, which the order of the weights makes whole cache lines. Simple rather than
// fast.

namespace quire::cuda {

struct PlainArguments {
  const uint8_t* weight;
  const uint8_t* activations;
  uint32_t tokens;
  uint32_t rows;
  uint32_t tiles;
  uint32_t blocks;        // of a row, along k
  uint32_t slice_blocks;  // of a warp
  const float* scales;    // of tokens, or none
};

// The lane's operand b of a step: 16 k of token lane / 4.
__device__ __forceinline__ uint2 load_activations(const PlainArguments& args, uint32_t part,
                                                  uint32_t step_in_part, uint32_t token, uint32_t lane) {
  const uint8_t* row = args.activations + (size_t(part) * args.tokens + token) * kActivationRowBytes;
  const uint32_t piece = 2 * step_in_part;
  const auto load = [&](uint32_t p) {
    return __ldg(reinterpret_cast<const uint32_t*>(row + (p ^ token % 8) * 16 + lane % 4 * 4));
  };
  return {load(piece), load(piece + 1)};
}

// The weights of a block as a lane needs them; bf16 has no scales and no LaneBlock.
template <WeightFormat kFormat>
struct GlobalBlock : LaneBlock<kFormat> {};

template <>
struct GlobalBlock<WeightFormat::bf16> {
  const uint8_t* at;

  __device__ __forceinline__ void load(const uint8_t* block, uint32_t lane) {
    at = block + lane / 4 * 16 + lane % 4 * 4;
  }
  __device__ __forceinline__ void operand(int step, uint32_t (&a)[4]) {
    const uint8_t* from = at + step / 4 * 2048 + step % 4 * 256;
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      a[i] = __ldg(reinterpret_cast<const uint32_t*>(from + i % 2 * 1024 + i / 2 * 128));
    }
  }
};

// A block of a warp for each slice: rows of `tile`, tokens from `first_token` on.
template <WeightFormat kFormat, uint32_t kTokenTiles, class Output>
__device__ __forceinline__ void plain_tile(const PlainArguments& args, uint32_t tile, uint32_t first_token,
                                           const Output& output) {
  __shared__ float sums[4][kTokenTiles][4][32];  // [slice][token tile][register][lane]
  const uint32_t slice = threadIdx.x / 32, slices = blockDim.x / 32, lane = threadIdx.x % 32;

  float acc[kTokenTiles][4] = {};
  const uint8_t* weight = args.weight + size_t(tile) * args.blocks * block_bytes(kFormat);
  for (uint32_t k = slice * args.slice_blocks; k < (slice + 1) * args.slice_blocks; ++k) {
    GlobalBlock<kFormat> block;
    block.load(weight + size_t(k) * block_bytes(kFormat), lane);
#pragma unroll
    for (int step = 0; step < 8; ++step) {
      uint32_t a[4];
      block.operand(step, a);
#pragma unroll
      for (uint32_t n = 0; n < kTokenTiles; ++n) {
        const uint32_t token = min(first_token + n * 8 + lane / 4, args.tokens - 1);
        const uint2 b = load_activations(args, k * 2 + step / 4, step % 4, token, lane);
        ptx::mma_bf16(acc[n], a, b.x, b.y);
      }
    }
  }

#pragma unroll
  for (uint32_t n = 0; n < kTokenTiles; ++n) {
#pragma unroll
    for (uint32_t i = 0; i < 4; ++i) sums[slice][n][i][lane] = acc[n][i];
  }
  __syncthreads();
  for (uint32_t n = slice; n < kTokenTiles; n += slices) {
    for (uint32_t c = 0; c < 2; ++c) {
      float y[2];
      for (uint32_t half = 0; half < 2; ++half) {
        float total = sums[0][n][half * 2 + c][lane];
        for (uint32_t s = 1; s < slices; ++s) total = __fadd_rn(total, sums[s][n][half * 2 + c][lane]);
        y[half] = undo_stored_weight<kFormat>(total);
      }
      const uint32_t token = first_token + n * 8 + lane % 4 * 2 + c;
      const bool valid = token < args.tokens;
      const float scale = args.scales != nullptr && valid ? args.scales[token] : 1.0f;
      finish<TwoRowsPerLane>(output, {tile * kTileRows, args.rows, token, valid, scale}, lane, y);
    }
  }
}

}  // namespace quire::cuda
