#pragma once

#include "backend/cuda/launch.cuh"
#include "backend/cuda/matmul/dequantize.cuh"
#include "backend/cuda/matmul/hopper/tile_end.cuh"
#include "backend/cuda/matmul/hopper/tile_sharing.cuh"
#include "backend/cuda/matmul/product_kernels.h"
#include "backend/cuda/matmul/wgmma.cuh"

// Products of many tokens on Hopper: one block on every multiprocessor takes tile after tile of 128 rows by kTokens.
// One thread copies weights and activations through a ring of stages; two warpgroups multiply 64 rows each, quantized
// weights turned into operands in registers on the way. Every slice of k has a sum of its own, added to the total in
// order.

namespace quire::cuda {

inline constexpr uint32_t kTileThreads = 3 * 128;  // two warpgroups multiply, one thread of the third copies
inline constexpr uint32_t kTileConsumerWarps = 8;

struct TileArguments {
  const uint8_t* activations;
  uint32_t tokens;
  uint32_t rows;
  uint32_t token_tiles;
  uint32_t slice_stages;  // stages of the ring that a slice takes
  TileSchedule schedule;
  TileSums sums;
  const float* scales;  // of tokens, or none
};

// Shared memory: stages, each of weights then activations and aligned to 1024, then the ring's barriers; behind them there is
// room for a tile's end.
template <WeightFormat kFormat, uint32_t kTokens>
struct TileRing {
  static constexpr uint32_t kStages = tile_stages(kFormat, kTokens);
  static constexpr uint32_t kStageBytes = tile_stage_bytes(kFormat, kTokens);
  static constexpr uint32_t kWeightBytes = tile_weight_bytes(kFormat);
  static constexpr uint32_t kParts = tile_stage_k(kFormat) / 64;
  static_assert(kStages * 16 <= kTileBarrierBytes);

  uint32_t base;
  uint32_t stage = 0, parity = 0;

  __device__ __forceinline__ explicit TileRing(uint32_t aligned) : base(aligned) {}
  __device__ __forceinline__ uint32_t address() const { return base + stage * kStageBytes; }
  __device__ __forceinline__ uint32_t full() const { return full(stage); }
  __device__ __forceinline__ uint32_t full(uint32_t i) const { return base + kStages * kStageBytes + i * 8; }
  __device__ __forceinline__ uint32_t empty(uint32_t i) const { return full(kStages + i); }
  __device__ __forceinline__ uint32_t end() const { return full(0) + kTileBarrierBytes; }
  __device__ __forceinline__ void advance() {
    if (++stage == kStages) {
      stage = 0;
      parity ^= 1;
    }
  }
};

// The stages that a block needs, one after the other.
class TileStages {
 public:
  __device__ __forceinline__ TileStages(const TileArguments& args, uint32_t block)
      : slice_stages_(args.slice_stages), cursor_(args.schedule, block) {}

  __device__ __forceinline__ bool next(uint32_t& tile, uint32_t& stage_of_k) {
    if (k_ == end_) {
      if (!cursor_.next(work_)) return false;
      k_ = work_.first_slice * slice_stages_;
      end_ = work_.end_slice * slice_stages_;
    }
    tile = work_.tile;
    stage_of_k = k_++;
    return true;
  }

 private:
  uint32_t slice_stages_;
  TileCursor cursor_;
  TileWork work_ = {};
  uint32_t k_ = 0, end_ = 0;
};

// What the copying thread does.
template <WeightFormat kFormat, uint32_t kTokens>
struct TileCopies {
  using Ring = TileRing<kFormat, kTokens>;
  const CUtensorMap* weights;
  const TileArguments& args;

  __device__ __forceinline__ uint32_t tokens_of(uint32_t tile) const {
    return min(kTokens, args.tokens - tile % args.token_tiles * kTokens);
  }

  __device__ __forceinline__ void copy_weights(const Ring& ring, uint32_t tile, uint32_t k) const {
    const uint32_t activation_bytes = Ring::kParts * tokens_of(tile) * kActivationRowBytes;
    ptx::arrive_expecting(ring.full(), Ring::kWeightBytes + activation_bytes);
    const uint32_t first_row_tile = tile / args.token_tiles * (kTileProductRows / kTileRows);
    ptx::copy_box(ring.address(), weights, 0, 0, int(k), int(first_row_tile), ring.full());
  }

  __device__ __forceinline__ void copy_activations(const Ring& ring, uint32_t tile, uint32_t k) const {
    const uint32_t first = tile % args.token_tiles * kTokens, count = tokens_of(tile);
#pragma unroll
    for (uint32_t part = 0; part < Ring::kParts; ++part) {
      const size_t row = (size_t(k) * Ring::kParts + part) * args.tokens + first;
      ptx::copy_bulk(ring.address() + Ring::kWeightBytes + part * kTokens * kActivationRowBytes,
                     args.activations + row * kActivationRowBytes, count * kActivationRowBytes, ring.full());
    }
  }

  __device__ void run(Ring ring) const {
    uint32_t tile, k;
    // Weights do not depend on the kernel before: fill the ring with them first.
    TileStages stages(args, blockIdx.x), again = stages;
    Ring filling = ring;
    uint32_t ahead = 0;
    for (; ahead < Ring::kStages && stages.next(tile, k); ++ahead, filling.advance()) {
      copy_weights(filling, tile, k);
    }
    ptx::wait_for_kernel_before();
    for (uint32_t i = 0; i < ahead && again.next(tile, k); ++i, ring.advance())
      copy_activations(ring, tile, k);
    for (; stages.next(tile, k); ring.advance()) {
      ptx::wait_barrier(ring.empty(ring.stage), ring.parity ^ 1);
      copy_weights(ring, tile, k);
      copy_activations(ring, tile, k);
    }
  }
};

// What a multiplying warpgroup does with a stage.
template <WeightFormat kFormat, uint32_t kTokens>
class TileMultiplier {
 public:
  using Ring = TileRing<kFormat, kTokens>;
  using Wgmma = ptx::Wgmma<kTokens>;
  using Sums = float[Wgmma::kRegisters];

  __device__ __forceinline__ TileMultiplier(const uint8_t* shared, uint32_t shared_base)
      : generic_(shared), shared_base_(shared_base), lane_(threadIdx.x % 32) {}

  // Nothing that a tile begins with is read, but the assembler does not see that: without these values it would keep the last
  // ones in registers while the tile before ends.
  __device__ __forceinline__ void begin_tile(Sums& sum) {
#pragma unroll
    for (float& value : sum) value = 0.0f;
#pragma unroll
    for (int i = 0; i < 8 * kGroup; ++i) operands_[i / (4 * kGroup)][i / 4 % kGroup][i % 4] = 0;
  }

  // sum += the stage, or = with `fresh`. Gives the stage before, if it is of the same sum, back to the copying thread once its
  // products have ended.
  __device__ __forceinline__ void multiply(Sums& sum, const Ring& ring, bool fresh) {
    const uint64_t activations = ptx::swizzled_operand(ring.address() + Ring::kWeightBytes);
    if constexpr (kFormat == WeightFormat::bf16) {
      const uint64_t weights = ptx::plain_operand(ring.address() + threadIdx.x / 128 * 8192, 128, 1024);
      ptx::fence_products();
#pragma unroll
      for (int step = 0; step < 4; ++step) {
        Wgmma::shared(sum, weights + step * 16, activations + step * 2, step > 0 || !fresh);
      }
      ptx::commit_products();
      ptx::wait_products<1>();
      if (!fresh) release_before(ring);
    } else {
      LaneBlock<kFormat> block;
      block.load(generic_ + (ring.address() - shared_base_) + threadIdx.x / 32 * block_bytes(kFormat), lane_);
#pragma unroll
      for (int group = 0; group < 8 / kGroup; ++group) {
        uint32_t(&a)[kGroup][4] = operands_[group % 2];
#pragma unroll
        for (int i = 0; i < kGroup; ++i) block.operand(group * kGroup + i, a[i]);
        ptx::fence_products();
#pragma unroll
        for (int i = 0; i < kGroup; ++i) {
          const int step = group * kGroup + i;
          const uint64_t b = activations + step / 4 * (kTokens * kActivationRowBytes >> 4) + step % 4 * 2;
          Wgmma::registers(sum, a[i], b, step > 0 || !fresh);
        }
        ptx::commit_products();
        ptx::wait_products<1>();
        keep(operands_[(group + 1) % 2]);
        if (group == 0 && !fresh) release_before(ring);
      }
    }
  }

  // After this `sum` can be read. `ring` has advanced.
  __device__ __forceinline__ void finish_slice(Sums& sum, const Ring& ring) {
    ptx::wait_products<0>();
#pragma unroll
    for (float& value : sum) asm volatile("" : "+f"(value)::"memory");
    if constexpr (kFormat != WeightFormat::bf16) {
      keep(operands_[0]);
      keep(operands_[1]);
    }
    release_before(ring);
  }

 private:
  // Steps whose operands are made before their products start together. Few tokens make short products, and more
  // of them are needed to hide the start. An even number of groups in a stage keeps the two sets in turn.
  static constexpr int kGroup = kTokens <= 64 ? 4 : 1;

  __device__ __forceinline__ void release_before(const Ring& ring) const {
    if (lane_ == 0) ptx::arrive(ring.empty((ring.stage == 0 ? Ring::kStages : ring.stage) - 1));
  }

  // These registers stay what they are until here, where the products that read them have ended. The compiler does
  // not know that they run on.
  __device__ __forceinline__ static void keep(uint32_t (&a)[kGroup][4]) {
#pragma unroll
    for (int i = 0; i < kGroup; ++i) {
      asm volatile("" : "+r"(a[i][0]), "+r"(a[i][1]), "+r"(a[i][2]), "+r"(a[i][3]));
    }
  }

  const uint8_t* generic_;
  uint32_t shared_base_;
  uint32_t lane_;
  uint32_t operands_[2][kGroup][4];
};

template <WeightFormat kFormat, uint32_t kTokens, class Output>
__global__ void __launch_bounds__(kTileThreads, 1)
    tile_product(const __grid_constant__ CUtensorMap weights, const __grid_constant__ TileArguments args,
                 const __grid_constant__ Output output) {
#if QUIRE_CUDA_HOPPER
  using Ring = TileRing<kFormat, kTokens>;
  using Multiplier = TileMultiplier<kFormat, kTokens>;
  extern __shared__ uint8_t shared[];
  const uint32_t shared_base = ptx::shared_address(shared);
  Ring ring((shared_base + 1023) & ~1023u);
  const uint32_t warpgroup = threadIdx.x / 128;

  ptx::launch_dependents();
  if (threadIdx.x == 0) {
    for (uint32_t i = 0; i < Ring::kStages; ++i) {
      ptx::init_barrier(ring.full(i), 1);
      ptx::init_barrier(ring.empty(i), kTileConsumerWarps);
    }
    ptx::publish_barriers();
  }
  __syncthreads();

  if (warpgroup == 2) {
    ptx::shrink_registers<40>();
    if (threadIdx.x / 32 % 4 == 0 && ptx::elect()) TileCopies<kFormat, kTokens>{&weights, args}.run(ring);
    return;
  }
  ptx::grow_registers<232>();
  ptx::wait_for_kernel_before();  // the output may be what it reads or writes

  Multiplier multiplier(shared, shared_base);
  using End = TileEnd<kTokens>;
  TileCursor cursor(args.schedule, blockIdx.x);
  for (TileWork work; cursor.next(work);) {
    const uint32_t first_token = work.tile % args.token_tiles * kTokens;
    if constexpr (Output::kScaled) {
      End(ring.end()).fetch_scales(args.scales, first_token, args.tokens);
    }
    typename Multiplier::Sums sum, total;
#pragma unroll
    for (float& value : total) value = -0.0f;  // the only number that adding to changes nothing, not even 0
    multiplier.begin_tile(sum);
#pragma unroll 1
    for (uint32_t slice = work.first_slice; slice < work.end_slice; ++slice) {
#pragma unroll 1
      for (uint32_t k = 0; k < args.slice_stages; ++k) {
        ptx::wait_barrier(ring.full(), ring.parity);
        multiplier.multiply(sum, ring, k == 0);
        ring.advance();
      }
      multiplier.finish_slice(sum, ring);
      if (work.first_slice > 0) SharedTile<kTokens>(args.sums, args.schedule, work.tile).leave(slice, sum);
#pragma unroll
      for (uint32_t i = 0; i < kTokens / 2; ++i) total[i] = __fadd_rn(total[i], sum[i]);
    }
    if (work.end_slice - work.first_slice < args.schedule.slices) {
      const SharedTile<kTokens> tile(args.sums, args.schedule, work.tile);
      if (work.first_slice == 0) tile.leave(0, total);
      if (!tile.comes_last(args.schedule)) continue;
      tile.add_all(args.schedule, total);
    }
    End(ring.end())
        .template finish<kFormat>(
            output, {work.tile / args.token_tiles * kTileProductRows, args.rows, first_token, args.tokens},
            total);
  }
  End(ring.end()).leave();
#endif
}

template <WeightFormat kFormat, uint32_t kTokens, class Output>
void launch_tile_tokens(const ProductCall<Output>& call) {
  const WeightShape& shape = call.weight.shape;
  const uint32_t tokens = call.activations.tokens, blocks = call.workspace.device().multiprocessors;
  TileArguments args = {};
  args.activations = call.activations.data;
  args.tokens = tokens;
  args.rows = shape.rows;
  args.token_tiles = (tokens + kTokens - 1) / kTokens;
  args.slice_stages = shape.k_plan().slice_blocks * (kBlockK / tile_stage_k(kFormat));
  args.schedule = schedule_tiles(shape, tokens, blocks);
  args.sums = {call.workspace.sums(), call.workspace.counters()};
  args.scales = prepare_scales(call);
  CHECK(tile_sums_bytes(args.schedule, kTokens) <= call.workspace.sums_bytes());
  launch(tile_product<kFormat, kTokens, Output>, {blocks, kTileThreads, tile_shared_bytes(kFormat, kTokens)},
         Overlap::with_kernel_before, call.stream, call.weight.map, args, call.output);
}

template <WeightFormat kFormat, class Output>
void launch_tile(const ProductCall<Output>& call) {
  switch (tile_tokens_for(call.activations.tokens)) {
    case 32:
      return launch_tile_tokens<kFormat, 32>(call);
    case 64:
      return launch_tile_tokens<kFormat, 64>(call);
    case 128:
      return launch_tile_tokens<kFormat, 128>(call);
    default:
      return launch_tile_tokens<kFormat, 192>(call);
  }
}

}  // namespace quire::cuda
