#pragma once

#include "backend/cuda/matmul/expert_kernels.h"
#include "backend/cuda/matmul/hopper/tile_product.cuh"

// Products of a mixture's experts where each has many tokens: the tile product (tile_product.cuh) over tiles of 128 rows
// by an item's tokens. Blocks take tiles in turn and whole.

namespace quire::cuda {

struct ExpertTileArguments {
  const uint8_t* activations;
  const uint32_t* item_count;
  const ExpertItem* items;
  uint32_t rows;          // of an expert
  uint32_t expert_tiles;  // tiles of 16 rows of an expert
  uint32_t row_tiles;     // tiles of 128 rows of an expert
  uint32_t slices;
  uint32_t slice_stages;
};

template <WeightFormat kFormat, uint32_t kTokens>
struct ExpertTileCopies {
  using Ring = TileRing<kFormat, kTokens>;
  const CUtensorMap* weights;
  const ExpertTileArguments& args;

  // What the copying thread does, after the kernel before.
  __device__ void run(Ring ring) const {
    const uint32_t tiles = *args.item_count * args.row_tiles, stages = args.slices * args.slice_stages;
    uint32_t filled = 0;
    for (uint32_t tile = blockIdx.x; tile < tiles; tile += gridDim.x) {
      const ExpertItem item = args.items[tile / args.row_tiles];
      const uint32_t row_tile =
          item.expert * args.expert_tiles + tile % args.row_tiles * (kTileProductRows / kTileRows);
      const uint32_t part_bytes = item.count * kActivationRowBytes;
      const uint8_t* from =
          args.activations + size_t(item.first) * stages * Ring::kParts * kActivationRowBytes;
      for (uint32_t k = 0; k < stages; ++k, ring.advance()) {
        if (filled < Ring::kStages) {
          ++filled;
        } else {
          ptx::wait_barrier(ring.empty(ring.stage), ring.parity ^ 1);
        }
        ptx::arrive_expecting(ring.full(), Ring::kWeightBytes + Ring::kParts * part_bytes);
        ptx::copy_box(ring.address(), weights, 0, 0, int(k), int(row_tile), ring.full());
#pragma unroll
        for (uint32_t part = 0; part < Ring::kParts; ++part, from += part_bytes) {
          ptx::copy_bulk(ring.address() + Ring::kWeightBytes + part * kTokens * kActivationRowBytes, from,
                         part_bytes, ring.full());
        }
      }
    }
  }
};

template <WeightFormat kFormat, uint32_t kTokens, class Output>
__global__ void __launch_bounds__(kTileThreads, 1)
    expert_tile(const __grid_constant__ CUtensorMap weights, const __grid_constant__ ExpertTileArguments args,
                const __grid_constant__ Output output) {
#if QUIRE_CUDA_HOPPER
  using Ring = TileRing<kFormat, kTokens>;
  using Multiplier = TileMultiplier<kFormat, kTokens>;
  extern __shared__ uint8_t shared[];
  const uint32_t shared_base = ptx::shared_address(shared);
  Ring ring((shared_base + 1023) & ~1023u);

  ptx::launch_dependents();
  if (threadIdx.x == 0) {
    for (uint32_t i = 0; i < Ring::kStages; ++i) {
      ptx::init_barrier(ring.full(i), 1);
      ptx::init_barrier(ring.empty(i), kTileConsumerWarps);
    }
    ptx::publish_barriers();
  }
  __syncthreads();
  ptx::wait_for_kernel_before();

  if (threadIdx.x / 128 == 2) {
    ptx::shrink_registers<40>();
    if (threadIdx.x / 32 % 4 == 0 && ptx::elect())
      ExpertTileCopies<kFormat, kTokens>{&weights, args}.run(ring);
    return;
  }
  ptx::grow_registers<232>();

  Multiplier multiplier(shared, shared_base);
  using End = TileEnd<kTokens>;
  End(ring.end()).make_ones();
  const uint32_t tiles = *args.item_count * args.row_tiles;
  for (uint32_t tile = blockIdx.x; tile < tiles; tile += gridDim.x) {
    typename Multiplier::Sums sum, total;
#pragma unroll
    for (float& value : total) value = -0.0f;
    multiplier.begin_tile(sum);
#pragma unroll 1
    for (uint32_t slice = 0; slice < args.slices; ++slice) {
#pragma unroll 1
      for (uint32_t k = 0; k < args.slice_stages; ++k) {
        ptx::wait_barrier(ring.full(), ring.parity);
        multiplier.multiply(sum, ring, k == 0);
        ring.advance();
      }
      multiplier.finish_slice(sum, ring);
#pragma unroll
      for (uint32_t i = 0; i < kTokens / 2; ++i) total[i] = __fadd_rn(total[i], sum[i]);
    }
    const ExpertItem item = args.items[tile / args.row_tiles];
    const auto of_item = output.of(item);
    End(ring.end())
        .template finish<kFormat>(
            of_item, {tile % args.row_tiles * kTileProductRows, args.rows, 0, item.count}, total);
  }
  End(ring.end()).leave();
#endif
}

template <WeightFormat kFormat, uint32_t kTokens, class Output>
void launch_experts_tile_tokens(const ExpertCall<Output>& call) {
  const WeightShape& shape = call.stack.shape;
  ExpertTileArguments args = {};
  args.activations = call.activations;
  args.item_count = call.item_count;
  args.items = call.items;
  args.rows = shape.rows;
  args.expert_tiles = shape.tiles();
  args.row_tiles = (shape.padded_rows() + kTileProductRows - 1) / kTileProductRows;
  args.slices = shape.k_plan().slices;
  args.slice_stages = shape.k_plan().slice_blocks * (kBlockK / tile_stage_k(kFormat));
  launch(expert_tile<kFormat, kTokens, Output>,
         {call.device.multiprocessors, kTileThreads, tile_shared_bytes(kFormat, kTokens)},
         Overlap::with_kernel_before, call.stream, call.stack.map, args, call.output);
}

template <WeightFormat kFormat, class Output>
void launch_experts_tile(const ExpertCall<Output>& call) {
  CHECK(call.item_tokens == 64 || call.item_tokens == 128);
  if (call.item_tokens == 64) {
    launch_experts_tile_tokens<kFormat, 64>(call);
  } else {
    launch_experts_tile_tokens<kFormat, 128>(call);
  }
}

}  // namespace quire::cuda
