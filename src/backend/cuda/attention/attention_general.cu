#include <algorithm>

#include "backend/cuda/attention/attention.h"
#include "backend/cuda/attention/attention_general.cuh"
#include "backend/cuda/attention/attention_plain.h"
#include "backend/cuda/launch.cuh"

namespace quire::cuda {
namespace {

__device__ __forceinline__ void wait_for_kernel_before() {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}

// A tile goes through its whole context.
__device__ __forceinline__ GeneralTask task_of_tile(const GeneralArgs& args, uint32_t first_row) {
  const PrefillTile tile = args.tiles[blockIdx.x / args.row_blocks];
  return {.token = tile.token,
          .tokens = tile.tokens,
          .row = tile.row,
          .table = tile.table,
          .kv_head = tile.kv_head,
          .first_row = first_row,
          .split = first_visible(tile.row, args.params.window) / kSplitKeys,
          .end_split = (tile.row + tile.tokens + kSplitKeys - 1) / kSplitKeys,
          .place = 0,
          .is_whole = true};
}

// A unit is one split of a context.
__device__ __forceinline__ GeneralTask task_of_unit(const GeneralArgs& args, uint32_t first_row) {
  const uint32_t item = blockIdx.x / args.row_blocks, kv_heads = args.params.rows.kv_heads;
  const DecodeUnit unit = args.units[item / kv_heads];
  return {.token = unit.token,
          .tokens = unit.tokens,
          .row = unit.row,
          .table = unit.table,
          .kv_head = item % kv_heads,
          .first_row = first_row,
          .split = unit.split,
          .end_split = unit.split + 1,
          .place = unit.first_place + unit.split - unit.first_split,
          .is_whole = unit.splits == 1};
}

// GeForce's multiprocessors have 100 KB of shared memory. What wants more is not compiled for them, nor chosen on them.
#if defined(__CUDA_ARCH__) && (__CUDA_ARCH__ == 860 || __CUDA_ARCH__ == 890 || __CUDA_ARCH__ >= 1200)
constexpr bool kHasMuchMemory = false;
#else
constexpr bool kHasMuchMemory = true;
#endif
constexpr uint32_t kMuchMemory = 160 * 1024;

template <class Shape>
__global__ void __launch_bounds__(Shape::kThreads, Shape::kDims <= 32 ? 2 : 1)
    general_attention(const __grid_constant__ GeneralArgs args) {
  if constexpr (kHasMuchMemory || !Shape::kHasAllChunks) {
    extern __shared__ __align__(16) uint8_t memory[];
    const uint32_t first_row = blockIdx.x % args.row_blocks * Shape::kRows;
    const bool in_tiles = !Shape::kUnitsAlone && (Shape::kTilesAlone || args.tiles != nullptr);
    const GeneralTask task = in_tiles ? task_of_tile(args, first_row) : task_of_unit(args, first_row);
    if (task.first_row >= task.tokens * args.group.size) return;  // all rows are beyond the tile's
    wait_for_kernel_before();
    GeneralRows<Shape>{args, task, memory}.run();
  }
}

// A block of threads has a row of some tokens and one KV head.
constexpr uint32_t kMergeThreads = 128;
__global__ void __launch_bounds__(kMergeThreads)
    merge_general_splits(const __grid_constant__ GeneralArgs args, const uint32_t* merges) {
  constexpr uint32_t kAtOnce = 8;  // splits whose loads are under way together
  __shared__ float row[kMostHeadDim];
  const AttentionParams& params = args.params;
  const uint32_t column = blockIdx.x % args.columns, rest = blockIdx.x / args.columns;
  const uint32_t kv_heads = params.rows.kv_heads, kv_head = rest % kv_heads, dims = params.rows.value_dim;
  const DecodeUnit unit = args.units[merges[rest / kv_heads]];
  wait_for_kernel_before();  // all do: who waits for this kernel counts on the one before it too
  if (column >= unit.tokens * params.group()) return;
  const uint32_t token = unit.token + column / params.group();
  const uint32_t head = kv_head * params.group() + column % params.group();
  const float* from = general_partial(args, unit.first_place, kv_head, column);
  const size_t step = size_t(kv_heads) * args.columns * (dims + kPartialExtra);
  for (uint32_t dim = threadIdx.x; dim < dims; dim += kMergeThreads) {
    float value = 0, total = 0, reference = -infinity();
    for (uint32_t begin = 0; begin < unit.splits; begin += kAtOnce) {
      float loaded[kAtOnce];
      float2 ends[kAtOnce];
#pragma unroll
      for (uint32_t i = 0; i < kAtOnce; ++i) {
        if (begin + i >= unit.splits) continue;
        loaded[i] = __ldcg(from + (begin + i) * step + dim);
        ends[i] = __ldcg(reinterpret_cast<const float2*>(from + (begin + i) * step + dims));
      }
#pragma unroll
      for (uint32_t i = 0; i < kAtOnce; ++i) {
        if (begin + i >= unit.splits) continue;
        const MergeWeights weights = merge_weights(ends[i].x, reference);
        total = merged(total, ends[i].y, weights);
        value = merged(value, loaded[i], weights);
      }
    }
    MergeWeights weights = {1.0f, 0.0f};
    if (params.sinks != nullptr) {
      weights = merge_weights(params.sinks[head] * kLog2E, reference);
      total = merged(total, 1.0f, weights);
    }
    row[dim] = merged(value, 0.0f, weights) * reciprocal(total);
  }
  if (is_turned(params.value_format)) {
    __syncthreads();
    if (threadIdx.x < 32) turn(row, dims);
    __syncthreads();
  }
  for (uint32_t dim = threadIdx.x; dim < dims; dim += kMergeThreads) {
    if (params.out_f32 != nullptr)
      params.out_f32[(size_t(token) * params.heads + head) * dims + dim] = row[dim];
    if (params.out != nullptr)
      *reinterpret_cast<uint16_t*>(params.out +
                                   activation_place(params.out_tokens, token, head * dims + dim)) =
          uint16_t(ptx::pack_bf16(row[dim], 0.0f));
  }
}

// Two blocks of threads on a multiprocessor where there are so many and each still has two slots, else one with as many as there is
// memory for.
template <class Shape>
GeneralMemory memory_for(const PagedRows& rows, uint32_t blocks) {
  const auto whole = [](uint32_t bytes) { return (bytes + 15) / 16 * 16; };
  const auto bytes_of = [](uint32_t dim) { return (dim + 15) / 16 * 32; };
  GeneralMemory memory = {};
  memory.pitch = bytes_of(std::max(rows.key_dim, rows.value_dim)) + 16;
  if (Shape::kWholeRows) {
    memory.behind = bytes_of(rows.key_dim);
    memory.pitch = memory.behind + bytes_of(rows.value_dim) + 16;
  }
  memory.scores = Shape::kRows * memory.pitch;
  memory.shares = memory.scores + Shape::kRows * kScorePitch * 4;
  memory.rows = memory.shares + Shape::kRows * kSharePitch;
  memory.value_factors = memory.rows + Shape::kRows * uint32_t(sizeof(GeneralRow));
  memory.ring = memory.value_factors + kFactorBlocks * kBlockKeys * 4;
  memory.slot_bytes = whole(Shape::kChunkKeys * (memory.pitch + 4));
  const uint32_t most = most_shared_bytes();
  if (Shape::kWholeRows) {
    const bool fits = memory.ring + Shape::kBlockChunks * memory.slot_bytes <= most;
    memory.slots = fits ? Shape::kBlockChunks : 1;
    memory.bytes = memory.ring + memory.slots * memory.slot_bytes;
    memory.bytes = std::max(memory.bytes, Shape::kRows * rows.value_dim * 4);  // for rows that are turned
    return memory;
  }
  CHECK(memory.ring + memory.slot_bytes <= most);
  const auto slots_in = [&](uint32_t bytes) {
    return bytes < memory.ring ? 0 : (bytes - memory.ring) / memory.slot_bytes;
  };
  const uint32_t in_half = blocks > uint32_t(multiprocessors()) ? slots_in(most / 2 - 1024) : 0;
  memory.slots = std::min(kMostSlots, in_half >= 2 ? in_half : slots_in(most));
  memory.bytes = memory.ring + memory.slots * memory.slot_bytes;
  CHECK(memory.bytes >= Shape::kRows * rows.value_dim * 4);  // for rows that are turned
  return memory;
}

// `rows`: of a tile or a unit, of which there are `count`.
template <class Shape>
void launch_shape(GeneralArgs args, uint32_t rows, uint32_t count, cudaStream_t stream) {
  args.row_blocks = (rows + Shape::kRows - 1) / Shape::kRows;
  args.memory = memory_for<Shape>(args.params.rows, count * args.row_blocks);
  CHECK(args.memory.bytes <= most_shared_bytes());
  launch(general_attention<Shape>,
         {.blocks = count * args.row_blocks, .threads = Shape::kThreads, .shared_bytes = args.memory.bytes},
         Overlap::with_kernel_before, stream, args);
}

// Of whole rows: the shape that there is memory for. The smallest takes 72 KB with rows of 576 numbers.
template <class Shape>
bool fits(const PagedRows& rows) {
  const GeneralMemory memory = memory_for<Shape>(rows, 0);
  if (Shape::kHasAllChunks && (memory.slots < Shape::kBlockChunks || most_shared_bytes() < kMuchMemory))
    return false;
  return memory.bytes <= most_shared_bytes();
}

void launch_whole(const GeneralArgs& args, uint32_t rows, uint32_t count, cudaStream_t stream) {
  using Tiles = GeneralShape<2, 8, 64, GeneralRowKind::whole_in_tiles>;
  using Units = GeneralShape<2, 8, 64, GeneralRowKind::whole_in_units>;
  using Few = GeneralShape<1, 8, 64, GeneralRowKind::whole>;
  using Least = GeneralShape<1, 4, 128, GeneralRowKind::whole>;
  // Who has all multiprocessors to himself anyway is done sooner with few rows in each.
  const uint32_t few_blocks = count * ((rows + Few::kRows - 1) / Few::kRows);
  const bool many =
      rows > Few::kRows && few_blocks > uint32_t(multiprocessors()) && fits<Tiles>(args.params.rows);
  (many && args.tiles != nullptr ? launch_shape<Tiles>
   : many                        ? launch_shape<Units>
   : fits<Few>(args.params.rows) ? launch_shape<Few>
                                 : launch_shape<Least>)(args, rows, count, stream);
}

void launch_few(const GeneralArgs& args, uint32_t rows, uint32_t count, cudaStream_t stream) {
  if (args.params.rows.key_goes_on) return launch_whole(args, rows, count, stream);
  const uint32_t most = std::max(args.params.rows.key_dim, args.params.rows.value_dim);
  (most <= 64    ? launch_shape<GeneralShape<1, 4, 16>>
   : most <= 128 ? launch_shape<GeneralShape<1, 4, 32>>
   : most <= 256 ? launch_shape<GeneralShape<1, 8, 32>>
                 : launch_shape<GeneralShape<1, 8, 64>>)(args, rows, count, stream);
}

void launch_many(const GeneralArgs& args, uint32_t rows, uint32_t count, cudaStream_t stream) {
  if (args.params.rows.key_goes_on) return launch_whole(args, rows, count, stream);
  const uint32_t most = std::max(args.params.rows.key_dim, args.params.rows.value_dim);
  (most <= 64    ? launch_shape<GeneralShape<4, 1, 64>>
   : most <= 128 ? launch_shape<GeneralShape<4, 2, 64>>
   : most <= 256 ? launch_shape<GeneralShape<2, 4, 64>>
                 : launch_shape<GeneralShape<1, 8, 64>>)(args, rows, count, stream);
}

GeneralArgs general_args(const AttentionParams& params) {
  const PagedRows& rows = params.rows;
  CHECK(rows.key_dim % 8 == 0 && rows.key_dim <= kMostHeadDim && rows.value_dim % 8 == 0 &&
        rows.value_dim <= kMostHeadDim);
  CHECK(has_aligned_rows(params) && params.numbers == numbers_of(params.key_format));
  CHECK(!rows.key_goes_on || (rows.kv_heads == 1 && rows.query_dim() <= kMostLatentDim));
  CHECK(params.group() <= (rows.key_goes_on ? kMostLatentGroup : kMostGroup));
  return {.params = params,
          .group = HeadGroup(params.group()),
          .tiles = nullptr,
          .units = nullptr,
          .row_blocks = 0,
          .partials = nullptr,
          .columns = 0,
          .page_tokens_share = uint32_t(((uint64_t(1) << 32) + rows.page_tokens - 1) / rows.page_tokens),
          .memory = {}};
}

}  // namespace

bool has_aligned_rows(const AttentionParams& params) {
  const PagedRows& rows = params.rows;
  const auto aligned = [&](size_t bytes) {
    return reinterpret_cast<uintptr_t>(rows.layer) % bytes == 0 && rows.page_bytes % bytes == 0 &&
           rows.head_bytes % bytes == 0 && rows.page_tokens * rows.key_row_bytes % bytes == 0;
  };
  const bool has_floats = is_float(params.key_format) || is_float(params.value_format);
  return aligned(has_floats ? 16 : 4);
}

void launch_general_prefill(const AttentionParams& params, const PrefillTile* tiles, uint32_t count,
                            cudaStream_t stream) {
  if (count == 0) return;
  GeneralArgs args = general_args(params);
  args.tiles = tiles;
  launch_many(args, kPrefillRows, count, stream);
}

void launch_general_units(const AttentionParams& params, const DecodeWork& work, float* partials,
                          cudaStream_t stream) {
  if (work.unit_count == 0) return;
  CHECK(work.columns <= kPrefillRows && params.group() <= work.columns);
  GeneralArgs args = general_args(params);
  args.units = work.units;
  args.partials = partials;
  args.columns = work.columns;
  const uint32_t count = work.unit_count * params.rows.kv_heads;
  (work.columns <= kDecodeColumns ? launch_few : launch_many)(args, work.columns, count, stream);
  if (work.merge_count == 0) return;
  launch(merge_general_splits,
         {.blocks = work.merge_count * params.rows.kv_heads * work.columns, .threads = kMergeThreads},
         Overlap::with_kernel_before, stream, args, work.merges);
}

}  // namespace quire::cuda
