#include "backend/cuda/activation_layout.h"
#include "backend/cuda/attention.h"
#include "backend/cuda/device_memory.h"
#include "backend/cuda/numbers.cuh"

// Attention for every architecture and head size by mma.sync, with plain copies: slower than the kernels for Hopper, with
// the same bits. A warp has 16 rows of a tile; a thread two of them, g and g + 8.

namespace quire::cuda {
namespace {

constexpr uint32_t kChunkKeys = 32;  // that are in shared memory at a time

template <int kMostDim>
struct GeneralLayout {
  static constexpr int kWarps = kMostDim <= 128 ? 4 : 2;  // so that the totals fit
  static constexpr uint32_t kRows = 16 * kWarps;
  static constexpr uint32_t kPitch =
      kMostDim * 2 + 16;  // of a row of 16-bit numbers: eight rows in different banks
  static constexpr uint32_t kChunk = kRows * kPitch;  // behind the queries
  static constexpr uint32_t kTotals = kChunk + kChunkKeys * kPitch;
  static constexpr uint32_t kBytes = kTotals + kRows * kMostDim * 4;
};

template <class Number, int kMostDim>
struct GeneralRows {
  using Layout = GeneralLayout<kMostDim>;
  static constexpr int kDimTiles = kMostDim / 8;

  const AttentionParams& params;
  const PrefillTile tile;
  const uint32_t first_row;  // of the tile, in this block of threads
  uint8_t* const memory;
  const ScoreScale scale = score_scale(params.scale, params.soft_cap);
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
  const uint32_t shared = ptx::shared_address(memory);

  float scores[64], values[4 * kDimTiles];
  uint32_t shares[8][4];
  float reference[2], sum[2], total_reference[2], total_sum[2];

  __device__ __forceinline__ uint32_t row_of(int which) const {
    return first_row + warp * 16 + g + 8 * which;
  }
  __device__ __forceinline__ uint32_t last_key(int which) const {
    return tile.row + row_of(which) / params.group();
  }
  __device__ __forceinline__ uint32_t end_key() const { return tile.row + tile.tokens; }
  __device__ __forceinline__ size_t out_row(uint32_t row) const {
    return size_t(tile.token + row / params.group()) * params.heads + tile.kv_head * params.group() +
           row % params.group();
  }
  __device__ __forceinline__ float* totals(int which) const {
    return reinterpret_cast<float*>(memory + Layout::kTotals) + (warp * 16 + g + 8 * which) * kMostDim +
           2 * t;
  }

  // 16 bytes at a time; `row` gives where a row is, or null for zeros.
  template <class Row>
  __device__ __forceinline__ void copy_rows(uint32_t count, uint32_t dim, uint32_t to, const Row& row) const {
    const uint32_t pieces = dim / 8;
    for (uint32_t i = threadIdx.x; i < count * pieces; i += blockDim.x) {
      const auto* from = reinterpret_cast<const uint4*>(row(i / pieces));
      *reinterpret_cast<uint4*>(memory + to + i / pieces * Layout::kPitch + i % pieces * 16) =
          from == nullptr ? uint4{0, 0, 0, 0} : from[i % pieces];
    }
  }

  __device__ __forceinline__ void copy_queries() const {
    copy_rows(Layout::kRows, params.rows.key_dim, 0, [&](uint32_t r) -> const uint16_t* {
      if ((first_row + r) / params.group() >= tile.tokens) return nullptr;
      return params.query + out_row(first_row + r) * params.rows.key_dim;
    });
  }

  enum class Rows { keys, values };
  __device__ __forceinline__ void copy_chunk(uint32_t key, Rows which) const {
    const PagedRows& rows = params.rows;
    __syncthreads();  // nobody reads the chunk before any more
    copy_rows(kChunkKeys, which == Rows::keys ? rows.key_dim : rows.value_dim, Layout::kChunk,
              [&](uint32_t r) -> const std::byte* {
                if (key + r >= end_key()) return nullptr;
                const uint32_t page = params.page_ids[tile.table + (key + r) / rows.page_tokens];
                if (page == kNoPage) return nullptr;
                const uint32_t row = (key + r) % rows.page_tokens;
                return which == Rows::keys ? rows.key_row(page, tile.kv_head, row)
                                           : rows.value_row(page, tile.kv_head, row);
              });
    __syncthreads();
  }

  // Products of the chunk c of a block with the queries: the scores of keys 32c to 32c + 31.
  template <int c>
  __device__ __forceinline__ void score_chunk() {
#pragma unroll
    for (int i = 16 * c; i < 16 * c + 16; ++i) scores[i] = 0;
    for (uint32_t k = 0; k < params.rows.key_dim; k += 16) {
      uint32_t a[4];
      ptx::load_matrices(a, shared + (warp * 16 + lane % 16) * Layout::kPitch + (k + lane / 16 * 8) * 2);
#pragma unroll
      for (int pair = 0; pair < 2; ++pair) {
        uint32_t b[4];
        const uint32_t key = pair * 16 + lane / 16 * 8 + lane % 8;
        ptx::load_matrices(b, shared + Layout::kChunk + key * Layout::kPitch + (k + lane / 8 % 2 * 8) * 2);
        add_product(scores + 16 * c + 8 * pair, a, b[0], b[1]);
        add_product(scores + 16 * c + 8 * pair + 4, a, b[2], b[3]);
      }
    }
  }

  __device__ __forceinline__ static void add_product(float* d, const uint32_t (&a)[4], uint32_t b0,
                                                     uint32_t b1) {
    float sums[4] = {d[0], d[1], d[2], d[3]};
    Number::mma(sums, a, b0, b1);
#pragma unroll
    for (int i = 0; i < 4; ++i) d[i] = sums[i];
  }

  template <int c>
  __device__ __forceinline__ void add_chunk() {
#pragma unroll
    for (int step = 0; step < 2; ++step) {
#pragma unroll
      for (int i = 0; i < kDimTiles; i += 2) {
        if (i * 8 >= int(params.rows.value_dim)) break;
        uint32_t b[4];
        const uint32_t key = step * 16 + lane / 8 % 2 * 8 + lane % 8;
        ptx::load_matrices_transposed(
            b, shared + Layout::kChunk + key * Layout::kPitch + (i * 8 + lane / 16 * 8) * 2);
        add_product(values + 4 * i, shares[2 * c + step], b[0], b[1]);
        add_product(values + 4 * i + 4, shares[2 * c + step], b[2], b[3]);
      }
    }
  }

  // Scores to shares; sum and values as the rule says.
  __device__ __forceinline__ void share(uint32_t block) {
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const uint32_t last = last_key(r), first = first_visible(last, params.window);
      float largest = -infinity();
#pragma unroll
      for (int i = 0; i < 64; ++i) {
        if (i / 2 % 2 != r) continue;
        const uint32_t key = block + i / 4 * 8 + 2 * t + i % 2;
        if (scale.into_cap > 0) scores[i] = capped(scores[i], scale.into_cap);
        if (key > last || key < first) scores[i] = -infinity();
        largest = larger(largest, scores[i]);
      }
      largest = larger(largest, __shfl_xor_sync(~0u, largest, 1));
      largest = larger(largest, __shfl_xor_sync(~0u, largest, 2));
      const float factor = raise_reference(largest, scale.scale, reference[r]),
                  offset = offset_of(reference[r]);
      sum[r] *= factor;
#pragma unroll
      for (int i = 0; i < 64; ++i) {
        if (i / 2 % 2 != r) continue;
        scores[i] = exp2_of(fused(scores[i], scale.scale, offset));
        sum[r] = sum[r] + scores[i];
      }
#pragma unroll
      for (int i = 0; i < 4 * kDimTiles; ++i)
        if (i / 2 % 2 == r) values[i] *= factor;
    }
#pragma unroll
    for (int i = 0; i < 32; ++i) shares[i / 4][i % 4] = Number::pack(scores[2 * i], scores[2 * i + 1]);
  }

  __device__ __forceinline__ void attend_block(uint32_t block) {
    copy_chunk(block, Rows::keys);
    score_chunk<0>();
    copy_chunk(block + 32, Rows::keys);
    score_chunk<1>();
    copy_chunk(block + 64, Rows::keys);
    score_chunk<2>();
    copy_chunk(block + 96, Rows::keys);
    score_chunk<3>();
    share(block);
    copy_chunk(block, Rows::values);
    add_chunk<0>();
    copy_chunk(block + 32, Rows::values);
    add_chunk<1>();
    copy_chunk(block + 64, Rows::values);
    add_chunk<2>();
    copy_chunk(block + 96, Rows::values);
    add_chunk<3>();
  }

  __device__ __forceinline__ void merge_split() {
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      float whole = sum[r] + __shfl_xor_sync(~0u, sum[r], 1);
      whole = whole + __shfl_xor_sync(~0u, whole, 2);
      const MergeWeights weights = merge_weights(reference[r], total_reference[r]);
      total_sum[r] = merged(total_sum[r], whole, weights);
      float* at = totals(r);
#pragma unroll
      for (int i = 0; i < kDimTiles; ++i) {
        at[8 * i] = merged(at[8 * i], values[4 * i + 2 * r], weights);
        at[8 * i + 1] = merged(at[8 * i + 1], values[4 * i + 2 * r + 1], weights);
      }
    }
  }

  __device__ __forceinline__ void begin_split() {
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      reference[r] = -infinity();
      sum[r] = 0;
    }
#pragma unroll
    for (int i = 0; i < 4 * kDimTiles; ++i) values[i] = 0;
  }

  __device__ __forceinline__ void run() {
    copy_queries();
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      total_reference[r] = -infinity();
      total_sum[r] = 0;
#pragma unroll
      for (int i = 0; i < kDimTiles; ++i) totals(r)[8 * i] = totals(r)[8 * i + 1] = 0;
    }
    for (uint32_t split = first_visible(tile.row, params.window) / kSplitKeys; split * kSplitKeys < end_key();
         ++split) {
      const KeySpan keys = keys_of_split(split, tile.row, tile.tokens, params.window);
      begin_split();
      for (uint32_t block = keys.begin; block < keys.end; block += kBlockKeys) attend_block(block);
      merge_split();
    }
    finish();
  }

  __device__ __forceinline__ void finish() {
    for (int r = 0; r < 2; ++r) {
      if (row_of(r) / params.group() >= tile.tokens) continue;
      MergeWeights weights = {1.0f, 0.0f};
      if (params.sinks != nullptr) {
        const float sink = params.sinks[tile.kv_head * params.group() + row_of(r) % params.group()];
        weights = merge_weights(sink * kLog2E, total_reference[r]);
        total_sum[r] = merged(total_sum[r], 1.0f, weights);
      }
      const float inverse = reciprocal(total_sum[r]);
      const size_t at = out_row(row_of(r)) * params.rows.value_dim + 2 * t;
      for (uint32_t i = 0; i < params.rows.value_dim; i += 8) {
        const float low = merged(totals(r)[i], 0.0f, weights) * inverse;
        const float high = merged(totals(r)[i + 1], 0.0f, weights) * inverse;
        if (params.out_f32 != nullptr)
          *reinterpret_cast<float2*>(params.out_f32 + at + i) = make_float2(low, high);
        if (params.out != nullptr) {
          const uint32_t col =
              uint32_t(out_row(row_of(r)) % params.heads) * params.rows.value_dim + i + 2 * t;
          const uint32_t token = tile.token + row_of(r) / params.group();
          *reinterpret_cast<uint32_t*>(params.out + activation_place(params.out_tokens, token, col)) =
              ptx::pack_bf16(low, high);
        }
      }
    }
  }
};

template <class Number, int kMostDim>
__global__ void __launch_bounds__(32 * GeneralLayout<kMostDim>::kWarps, 1)
    general_attention(const AttentionParams params, const PrefillTile* tiles) {
  extern __shared__ __align__(16) uint8_t memory[];
  constexpr uint32_t kParts = kPrefillRows / GeneralLayout<kMostDim>::kRows;
  const PrefillTile tile = tiles[blockIdx.x / kParts];
  const uint32_t first_row = blockIdx.x % kParts * GeneralLayout<kMostDim>::kRows;
  if (first_row / params.group() >= tile.tokens) return;  // all rows are beyond the tile's
  GeneralRows<Number, kMostDim>{params, tile, first_row, memory}.run();
}

template <class Number, int kMostDim>
void launch(const AttentionParams& params, const PrefillTile* tiles, uint32_t count, cudaStream_t stream) {
  using Layout = GeneralLayout<kMostDim>;
  const auto kernel = general_attention<Number, kMostDim>;
  CUDA_CHECK(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, Layout::kBytes));
  kernel<<<count*(kPrefillRows / Layout::kRows), 32 * Layout::kWarps, Layout::kBytes, stream>>>(params,
                                                                                                tiles);
  CUDA_CHECK(cudaGetLastError());
}

template <class Number>
void launch_for(const AttentionParams& params, const PrefillTile* tiles, uint32_t count,
                cudaStream_t stream) {
  const uint32_t most =
      params.rows.key_dim > params.rows.value_dim ? params.rows.key_dim : params.rows.value_dim;
  (most <= 64    ? launch<Number, 64>
   : most <= 128 ? launch<Number, 128>
                 : launch<Number, 256>)(params, tiles, count, stream);
}

}  // namespace

void launch_general_attention(const AttentionParams& params, const PrefillTile* tiles, uint32_t count,
                              cudaStream_t stream) {
  const PagedRows& rows = params.rows;
  CHECK(rows.key_dim % 16 == 0 && rows.key_dim <= 256 && rows.value_dim % 16 == 0 && rows.value_dim <= 256);
  CHECK(reinterpret_cast<uintptr_t>(rows.layer) % 16 == 0 && rows.page_bytes % 16 == 0 &&
        rows.head_bytes % 16 == 0);
  CHECK(params.group() <= kMostGroup);
  if (count == 0) return;
  (params.numbers == HalfKind::bf16 ? launch_for<Bf16> : launch_for<F16>)(params, tiles, count, stream);
}

}  // namespace quire::cuda
