#pragma once

#include "backend/cuda/launch.cuh"
#include "backend/cuda/matmul/dequantize.cuh"
#include "backend/cuda/matmul/epilogue.cuh"
#include "backend/cuda/matmul/product_kernels.h"
#include "backend/cuda/matmul/ptx_hopper.cuh"

// Products of few tokens on Hopper, bound by the memory that the weights are read from. A warp owns a slice of k of
// one or two tiles of 16 rows, and a ring of bulk copies that bring weights and activations. The warps of a tile's
// slices meet at its end and add their sums in order. The first weights are fetched before the kernel before has
// ended.

namespace quire::cuda {

struct StreamArguments {
  const uint8_t* weight;
  const uint8_t* activations;
  uint32_t tokens;
  uint32_t rows;
  uint32_t tile_groups;  // row tiles / tiles of a warp
  uint32_t slices;
  uint32_t slice_units;  // pieces of stream_unit_k
  uint32_t chunk_units;
  uint32_t stages;
  uint32_t stage_bytes;
  uint32_t sum_buffers;
};

// Where a warp's next chunk comes from.
template <WeightFormat kFormat, uint32_t kRowTiles>
class StreamCursor {
 public:
  static constexpr uint32_t kUnitBytes = block_bytes(kFormat) * stream_unit_k(kFormat) / kBlockK;
  static constexpr uint32_t kUnitParts = stream_unit_k(kFormat) / 64;  // rows of activations

  __device__ __forceinline__ StreamCursor(const StreamArguments& a, uint32_t tile_group, uint32_t stride,
                                          uint32_t slice)
      : tile_bytes_(size_t(a.slices) * a.slice_units * kUnitBytes),
        jump_(size_t(stride) * kRowTiles * tile_bytes_ - size_t(a.slice_units) * kUnitBytes),
        weight_(a.weight + tile_group * (kRowTiles * tile_bytes_) +
                size_t(slice) * a.slice_units * kUnitBytes),
        first_activations_(a.activations + size_t(slice) * a.slice_units * activation_bytes_per_unit(a)),
        activations_(first_activations_),
        left_(a.slice_units) {}

  __device__ __forceinline__ static uint32_t activation_bytes_per_unit(const StreamArguments& a) {
    return kUnitParts * a.tokens * kActivationRowBytes;
  }

  __device__ __forceinline__ uint32_t units(const StreamArguments& a) const {
    return min(a.chunk_units, left_);
  }

  __device__ __forceinline__ void copy_weights(const StreamArguments& a, uint32_t stage,
                                               uint32_t barrier) const {
    const uint32_t n = units(a);
    ptx::arrive_expecting(barrier, n * (kRowTiles * kUnitBytes + activation_bytes_per_unit(a)));
#pragma unroll
    for (uint32_t m = 0; m < kRowTiles; ++m) {
      ptx::copy_bulk(stage + m * a.chunk_units * kUnitBytes, weight_ + m * tile_bytes_, n * kUnitBytes,
                     barrier);
    }
  }

  __device__ __forceinline__ void copy_activations(const StreamArguments& a, uint32_t stage,
                                                   uint32_t barrier) const {
    ptx::copy_bulk(stage + kRowTiles * a.chunk_units * kUnitBytes, activations_,
                   units(a) * activation_bytes_per_unit(a), barrier);
  }

  __device__ __forceinline__ void advance(const StreamArguments& a) {
    const uint32_t n = units(a);
    weight_ += size_t(n) * kUnitBytes;
    activations_ += size_t(n) * activation_bytes_per_unit(a);
    left_ -= n;
    if (left_ > 0) return;
    left_ = a.slice_units;
    weight_ += jump_;
    activations_ = first_activations_;
  }

 private:
  size_t tile_bytes_;
  size_t jump_;  // from the end of a slice to its begin in the warp's next tiles
  const uint8_t* weight_;
  const uint8_t* first_activations_;
  const uint8_t* activations_;
  uint32_t left_;  // units of the slice
};

// Operands b of the tensor cores from activations in shared memory. Tokens past the last repeat it: their columns are
// computed and dropped, which is cheaper than zeros.
template <uint32_t kTokenTiles>
struct ActivationOperands {
  uint32_t offset;  // of the lane's row and piece

  __device__ __forceinline__ ActivationOperands(uint32_t lane, uint32_t tokens) {
    const uint32_t wanted = kTokenTiles == 1 ? lane % 8 : lane / 16 * 8 + lane % 8;
    const uint32_t piece = kTokenTiles == 1 ? lane / 8 : lane / 8 % 2;
    const uint32_t token = min(wanted, tokens - 1);
    offset = token * kActivationRowBytes + (piece ^ token % 8) * 16;
  }

  // Two steps of 16 k of 8 tokens, or one step of 16 tokens; `piece` is the first 16 bytes of them.
  __device__ __forceinline__ void load(uint32_t (&b)[4], uint32_t part, uint32_t piece) const {
    ptx::load_matrices(b, part + (offset ^ piece * 16));
  }
};

// acc[row tile][token tile] += a unit of weights times its activations.
template <WeightFormat kFormat, uint32_t kTokenTiles, uint32_t kRowTiles>
struct StreamUnit {
  using Sums = float[kRowTiles][kTokenTiles][4];

  // `weights` and `activations` are shared addresses, `generic` points to the weights too.
  __device__ __forceinline__ static void multiply(Sums& acc, const uint8_t* generic, uint32_t weights,
                                                  uint32_t tile_stride, uint32_t activations,
                                                  uint32_t part_bytes,
                                                  const ActivationOperands<kTokenTiles>& operands,
                                                  uint32_t lane) {
    if constexpr (kFormat == WeightFormat::bf16) {
      const uint32_t at = weights + lane / 8 % 2 * 1024 + lane / 16 * 128 + lane % 8 * 16;
      steps<4>(acc, activations, part_bytes, operands, [&](uint32_t m, int step, uint32_t(&a)[4]) {
        ptx::load_matrices(a, at + m * tile_stride + step * 256);
      });
    } else {
      LaneBlock<kFormat> blocks[kRowTiles];
#pragma unroll
      for (uint32_t m = 0; m < kRowTiles; ++m) blocks[m].load(generic + m * tile_stride, lane);
      steps<8>(acc, activations, part_bytes, operands,
               [&](uint32_t m, int step, uint32_t(&a)[4]) { blocks[m].operand(step, a); });
    }
  }

 private:
  template <int kSteps, class Operand>
  __device__ __forceinline__ static void steps(Sums& acc, uint32_t activations, uint32_t part_bytes,
                                               const ActivationOperands<kTokenTiles>& operands,
                                               const Operand& operand) {
    constexpr int kStepsPerLoad = kTokenTiles == 1 ? 2 : 1;
#pragma unroll
    for (int first = 0; first < kSteps; first += kStepsPerLoad) {
      uint32_t b[4];
      operands.load(b, activations + first / 4 * part_bytes, first % 4 * 2);
#pragma unroll
      for (int step = first; step < first + kStepsPerLoad; ++step) {
#pragma unroll
        for (uint32_t m = 0; m < kRowTiles; ++m) {
          uint32_t a[4];
          operand(m, step, a);
#pragma unroll
          for (uint32_t n = 0; n < kTokenTiles; ++n) {
            const int pair = kTokenTiles == 1 ? (step - first) * 2 : int(n) * 2;
            ptx::mma_bf16(acc[m][n], a, b[pair], b[pair + 1]);
          }
        }
      }
    }
  }
};

// The sums of the warps that have a group's tiles, in shared memory: [slice][token][row].
template <WeightFormat kFormat, uint32_t kTokenTiles>
struct StreamSums {
  static constexpr uint32_t kRowTiles = stream_shape(kFormat, kTokenTiles).row_tiles;
  static constexpr uint32_t kStride = stream_sum_stride(kFormat, kRowTiles);
  float* sums;
  uint32_t lane;

  __device__ __forceinline__ void leave(const typename StreamUnit<kFormat, kTokenTiles, kRowTiles>::Sums& acc,
                                        uint32_t slice, uint32_t tokens) const {
#pragma unroll
    for (uint32_t m = 0; m < kRowTiles; ++m) {
#pragma unroll
      for (uint32_t n = 0; n < kTokenTiles; ++n) {
#pragma unroll
        for (uint32_t i = 0; i < 4; ++i) {
          const uint32_t token = n * 8 + lane % 4 * 2 + i % 2, row = m * 16 + lane / 4 + i / 2 * 8;
          if (token < tokens) sums[(slice * tokens + token) * kStride + row] = acc[m][n][i];
        }
      }
    }
  }

  // The warps of the slices share the numbers of the tiles.
  template <class Output>
  __device__ __forceinline__ void finish(const StreamArguments& args, const Output& output,
                                         uint32_t tile_group, uint32_t slice, const float* scales) const {
    constexpr uint32_t kRows = kTileRows * kRowTiles;
    const uint32_t count = args.tokens * kRows;
    for (uint32_t base = slice * 32; base < count; base += args.slices * 32) {
      const uint32_t index = min(base + lane, count - 1);
      const uint32_t row = index % kRows, token = index / kRows;
      const float* at = sums + token * kStride + row;
      float y = at[0];
      for (uint32_t s = 1; s < args.slices; ++s) y = __fadd_rn(y, at[s * args.tokens * kStride]);
      const float finished[1] = {undo_stored_weight<kFormat>(y)};
      const Spot spot = {tile_group * kRows + row / kTileRows * kTileRows, args.rows, token,
                         base + lane < count, scales != nullptr ? scales[token] : 1.0f};
      cuda::finish<RowPerLane>(output, spot, lane, finished);
    }
  }
};

template <WeightFormat kFormat, uint32_t kTokenTiles, class Output>
__global__ void __launch_bounds__(stream_shape(kFormat, kTokenTiles).warps * 32,
                                  stream_shape(kFormat, kTokenTiles).places)
    stream_product(const StreamArguments args, const Output output) {
#if QUIRE_CUDA_HOPPER
  constexpr StreamShape kShape = stream_shape(kFormat, kTokenTiles);
  constexpr uint32_t kRowTiles = kShape.row_tiles, kWarps = kShape.warps;
  using Cursor = StreamCursor<kFormat, kRowTiles>;
  using Unit = StreamUnit<kFormat, kTokenTiles, kRowTiles>;

  // The rings of all warps, their barriers, the sums of their slices.
  extern __shared__ __align__(128) uint8_t shared[];
  const uint32_t warp = __shfl_sync(~0u, threadIdx.x / 32, 0), lane = threadIdx.x % 32;
  const uint32_t ring_bytes = args.stages * args.stage_bytes;
  const uint32_t ring = ptx::shared_address(shared) + warp * ring_bytes;
  const uint32_t barriers = ptx::shared_address(shared) + kWarps * ring_bytes + warp * args.stages * 8;
  float* sums = reinterpret_cast<float*>(shared + kWarps * (ring_bytes + args.stages * 8));

  ptx::launch_dependents();
  if (lane == 0) {
    for (uint32_t i = 0; i < args.stages; ++i) ptx::init_barrier(barriers + i * 8, 1);
    ptx::publish_barriers();
  }
  __syncwarp();

  const uint32_t group = warp / args.slices, slice = warp % args.slices, groups = kWarps / args.slices;
  const uint32_t first = group * gridDim.x + blockIdx.x, stride = gridDim.x * groups;
  const uint32_t slice_chunks = (args.slice_units + args.chunk_units - 1) / args.chunk_units;
  const uint32_t rounds = first < args.tile_groups ? (args.tile_groups - first + stride - 1) / stride : 0;
  uint32_t to_fetch = rounds * slice_chunks;
  const bool copies = ptx::elect();

  const uint32_t ahead = min(args.stages, to_fetch);
  Cursor cursor(args, first, stride, slice), at_start = cursor;
  for (uint32_t i = 0; i < ahead; ++i, cursor.advance(args)) {
    if (copies) cursor.copy_weights(args, ring + i * args.stage_bytes, barriers + i * 8);
  }
  ptx::wait_for_kernel_before();
  for (uint32_t i = 0; i < ahead; ++i, at_start.advance(args)) {
    if (copies) at_start.copy_activations(args, ring + i * args.stage_bytes, barriers + i * 8);
  }
  to_fetch -= ahead;

  __shared__ float scales[kStreamTokens];
  static_assert(sizeof scales <= kOwnSharedBytes);
  const bool scaled = scales_of(output) != nullptr;
  if constexpr (Output::kScaled) {
    if (scaled) {
      for (uint32_t token = warp; token < args.tokens; token += kWarps) {
        const float scale = token_scale(output.scales, token, lane);
        if (lane == 0) scales[token] = scale;
      }
      __syncthreads();
    }
  }

  const ActivationOperands<kTokenTiles> operands(lane, args.tokens);
  const uint32_t part_bytes = args.tokens * kActivationRowBytes;
  const uint32_t tile_stride = args.chunk_units * Cursor::kUnitBytes;
  const uint32_t warp_sums = args.tokens * stream_sum_stride(kFormat, kRowTiles);
  uint32_t stage = 0, parity = 0, buffer = 0;
  for (uint32_t tile_group = first; tile_group < args.tile_groups; tile_group += stride) {
    typename Unit::Sums acc = {};
    for (uint32_t done = 0; done < args.slice_units; done += args.chunk_units) {
      const uint32_t weights = ring + stage * args.stage_bytes, barrier = barriers + stage * 8;
      const uint8_t* generic = shared + warp * ring_bytes + stage * args.stage_bytes;
      const uint32_t units = min(args.chunk_units, args.slice_units - done);
      ptx::wait_barrier(barrier, parity);
      for (uint32_t u = 0; u < units; ++u) {
        Unit::multiply(acc, generic + u * Cursor::kUnitBytes, weights + u * Cursor::kUnitBytes, tile_stride,
                       weights + kRowTiles * tile_stride + u * Cursor::kUnitParts * part_bytes, part_bytes,
                       operands, lane);
      }
      __syncwarp();
      if (to_fetch > 0) {
        --to_fetch;
        if (copies) {
          cursor.copy_weights(args, weights, barrier);
          cursor.copy_activations(args, weights, barrier);
        }
        cursor.advance(args);
      }
      if (++stage == args.stages) {
        stage = 0;
        parity ^= 1;
      }
    }

    StreamSums<kFormat, kTokenTiles> tile_sums = {sums + (buffer * kWarps + group * args.slices) * warp_sums,
                                                  lane};
    const auto meet = [&] {
      if (args.slices > 1) {
        ptx::meet(1 + group, args.slices * 32);
      } else {
        __syncwarp();
      }
    };
    tile_sums.leave(acc, slice, args.tokens);
    meet();
    tile_sums.finish(args, output, tile_group, slice, scaled ? scales : nullptr);
    if (args.sum_buffers == 2) {
      buffer ^= 1;
    } else {
      meet();
    }
  }
#endif
}

template <WeightFormat kFormat, uint32_t kTokenTiles, class Output>
void launch_stream_tiles(const ProductCall<Output>& call) {
  const StreamPlan plan = plan_stream(kFormat, call.activations.tokens);
  const WeightShape& shape = call.weight.shape;
  const KPlan k = shape.k_plan();
  StreamArguments args = {};
  args.weight = call.weight.data;
  args.activations = call.activations.data;
  args.tokens = call.activations.tokens;
  args.rows = shape.rows;
  args.tile_groups = shape.tiles() / plan.shape.row_tiles;
  args.slices = k.slices;
  args.slice_units = k.slice_blocks * (kBlockK / stream_unit_k(kFormat));
  args.chunk_units = plan.chunk_units;
  args.stages = plan.stages;
  args.stage_bytes = plan.stage_bytes;
  args.sum_buffers = plan.sum_buffers;
  const LaunchShape launch_shape = {call.workspace.device().multiprocessors, plan.shape.warps * 32,
                                    plan.shared_bytes};
  launch(stream_product<kFormat, kTokenTiles, Output>, launch_shape, Overlap::with_kernel_before, call.stream,
         args, call.output);
}

template <WeightFormat kFormat, class Output>
void launch_stream(const ProductCall<Output>& call) {
  CHECK(call.activations.tokens <= kStreamTokens);
  if (call.activations.tokens <= 8) {
    launch_stream_tiles<kFormat, 1>(call);
  } else {
    launch_stream_tiles<kFormat, 2>(call);
  }
}

}  // namespace quire::cuda
