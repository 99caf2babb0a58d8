#include <algorithm>
#include <type_traits>

#include "backend/cuda/attention/attention.h"
#include "backend/cuda/attention/attention_plain.h"
#include "backend/cuda/attention/kv_row_codes.cuh"
#include "backend/cuda/attention/kv_row_pieces.cuh"
#include "backend/cuda/device_memory.h"
#include "backend/cuda/matmul/activation_layout.h"
#include "backend/cuda/numbers.cuh"

// Attention for every architecture, head size and format of pages by mma.sync, with plain copies: slower than the kernels for
// Hopper, with the same bits. A warp has 16 rows of a tile; a thread two of them, g and g + 8. Of very large heads two warps have the
// same rows, and half of the values each.

namespace quire::cuda {
namespace {

constexpr uint32_t kChunkKeys = 32;  // that are in shared memory at a time

template <int kMostDim>
struct GeneralLayout {
  static constexpr int kWarps = kMostDim <= 128 ? 4 : 2;  // so that the totals fit
  static constexpr int kParts =
      kMostDim <= 256 ? 1 : 2;  // warps of the same rows: their values fit the registers
  static constexpr uint32_t kRows = 16 * kWarps / kParts;
  static constexpr uint32_t kPitch =
      kMostDim * 2 + 16;  // of a row of 16-bit numbers: eight rows in different banks
  static constexpr uint32_t kChunk = kRows * kPitch;  // behind the queries
  static constexpr uint32_t kTotals = kChunk + kChunkKeys * kPitch;
  static constexpr uint32_t kKeyFactors = kTotals + kRows * kMostDim * 4;  // of the chunk
  static constexpr uint32_t kValueFactors = kKeyFactors + kChunkKeys * 4;  // of the block
  static constexpr uint32_t kBytes = kValueFactors + kBlockKeys * 4;
};

template <class KeyNumber, class ValueNumber, int kMostDim>
struct GeneralRows {
  using Layout = GeneralLayout<kMostDim>;
  static constexpr int kParts = Layout::kParts, kOwnDim = kMostDim / kParts;  // of values
  static constexpr int kDimTiles = kOwnDim / 8;

  const AttentionParams& params;
  const PrefillTile tile;
  const uint32_t first_row;  // of the tile, in this block of threads
  uint8_t* const memory;
  const ScoreScale scale = score_scale(params.scale, params.soft_cap);
  const int warp = threadIdx.x / 32 / kParts, part = threadIdx.x / 32 % kParts;
  const int lane = threadIdx.x % 32, g = lane / 4, t = lane % 4, first_dim = part * kOwnDim;
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
           first_dim + 2 * t;
  }
  __device__ __forceinline__ int own_dims() const {
    return min(kOwnDim, max(0, int(params.rows.value_dim) - first_dim));
  }

  // Eight numbers at a time, up to a multiple of sixteen; `row` gives where a row is, or null for zeros.
  template <class Row>
  __device__ __forceinline__ void copy_rows(uint32_t count, KvFormat format, uint32_t dim, uint32_t to,
                                            const Row& row) const {
    const uint32_t pieces = (dim + 15) / 16 * 2;
    for (uint32_t i = threadIdx.x; i < count * pieces; i += blockDim.x) {
      const std::byte* from = row(i / pieces);
      const uint32_t piece = i % pieces;
      *reinterpret_cast<uint4*>(memory + to + i / pieces * Layout::kPitch + piece * 16) =
          from == nullptr || 8 * piece >= dim ? uint4{0, 0, 0, 0} : load_piece(format, from, dim, piece);
    }
  }

  __device__ __forceinline__ void copy_queries() const {
    copy_rows(Layout::kRows, KvFormat::bf16, params.rows.key_dim, 0, [&](uint32_t r) -> const std::byte* {
      if ((first_row + r) / params.group() >= tile.tokens) return nullptr;
      return reinterpret_cast<const std::byte*>(params.query + out_row(first_row + r) * params.rows.key_dim);
    });
  }

  enum class Rows { keys, values };
  // Where the row of a key is, or null where nobody sees it.
  __device__ __forceinline__ const std::byte* row_at(uint32_t key, Rows which) const {
    const PagedRows& rows = params.rows;
    if (key >= end_key()) return nullptr;
    const uint32_t page = params.page_ids[tile.table + key / rows.page_tokens];
    if (page == kNoPage) return nullptr;
    const uint32_t row = key % rows.page_tokens;
    return which == Rows::keys ? rows.key_row(page, tile.kv_head, row)
                               : rows.value_row(page, tile.kv_head, row);
  }

  __device__ __forceinline__ float* factors(Rows which) const {
    return reinterpret_cast<float*>(memory +
                                    (which == Rows::keys ? Layout::kKeyFactors : Layout::kValueFactors));
  }
  __device__ __forceinline__ void copy_factors(uint32_t key, uint32_t count, Rows which) const {
    const KvFormat format = which == Rows::keys ? params.key_format : params.value_format;
    if (!has_factors(format)) return;
    const uint32_t dim = which == Rows::keys ? params.rows.key_dim : params.rows.value_dim;
    for (uint32_t r = threadIdx.x; r < count; r += blockDim.x) {
      const std::byte* from = row_at(key + r, which);
      factors(which)[r] = from == nullptr ? 0.0f : kernel_factor(format, from, dim);
    }
  }

  __device__ __forceinline__ void copy_chunk(uint32_t key, Rows which) const {
    const bool keys = which == Rows::keys;
    __syncthreads();  // nobody reads the chunk before any more
    copy_rows(kChunkKeys, keys ? params.key_format : params.value_format,
              keys ? params.rows.key_dim : params.rows.value_dim, Layout::kChunk,
              [&](uint32_t r) { return row_at(key + r, which); });
    if (keys) copy_factors(key, kChunkKeys, Rows::keys);
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
        add_product<KeyNumber>(scores + 16 * c + 8 * pair, a, b[0], b[1]);
        add_product<KeyNumber>(scores + 16 * c + 8 * pair + 4, a, b[2], b[3]);
      }
    }
    if (!has_factors(params.key_format)) return;
#pragma unroll
    for (int i = 0; i < 16; ++i) scores[16 * c + i] *= factors(Rows::keys)[i / 4 * 8 + 2 * t + i % 2];
  }

  template <class Number>
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
        if (first_dim + i * 8 >= int(params.rows.value_dim)) break;
        uint32_t b[4];
        const uint32_t key = step * 16 + lane / 8 % 2 * 8 + lane % 8;
        ptx::load_matrices_transposed(
            b, shared + Layout::kChunk + key * Layout::kPitch + (first_dim + i * 8 + lane / 16 * 8) * 2);
        add_product<ValueNumber>(values + 4 * i, shares[2 * c + step], b[0], b[1]);
        add_product<ValueNumber>(values + 4 * i + 4, shares[2 * c + step], b[2], b[3]);
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
    if (has_factors(params.value_format)) {
#pragma unroll
      for (int i = 0; i < 64; ++i) scores[i] *= factors(Rows::values)[i / 4 * 8 + 2 * t + i % 2];
    }
#pragma unroll
    for (int i = 0; i < 32; ++i) shares[i / 4][i % 4] = ValueNumber::pack(scores[2 * i], scores[2 * i + 1]);
  }

  __device__ __forceinline__ void attend_block(uint32_t block) {
    copy_chunk(block, Rows::keys);
    copy_factors(block, kBlockKeys, Rows::values);  // the next chunk waits for them
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

  // The result, where the totals are.
  __device__ __forceinline__ void divide() {
    for (int r = 0; r < 2; ++r) {
      if (row_of(r) / params.group() >= tile.tokens) continue;
      MergeWeights weights = {1.0f, 0.0f};
      if (params.sinks != nullptr) {
        const float sink = params.sinks[tile.kv_head * params.group() + row_of(r) % params.group()];
        weights = merge_weights(sink * kLog2E, total_reference[r]);
        total_sum[r] = merged(total_sum[r], 1.0f, weights);
      }
      const float inverse = reciprocal(total_sum[r]);
      for (int i = 0; i < own_dims(); i += 8) {
        totals(r)[i] = merged(totals(r)[i], 0.0f, weights) * inverse;
        totals(r)[i + 1] = merged(totals(r)[i + 1], 0.0f, weights) * inverse;
      }
    }
  }

  __device__ __forceinline__ static void meet_parts() {
    if constexpr (kParts == 1) {
      __syncwarp();
    } else {
      __syncthreads();
    }
  }

  __device__ __forceinline__ void turn_rows() const {
    meet_parts();
    float* first = reinterpret_cast<float*>(memory + Layout::kTotals) + warp * 16 * kMostDim;
    for (int row = part; row < 16; row += kParts) turn(first + row * kMostDim, params.rows.value_dim);
    meet_parts();
  }

  __device__ __forceinline__ void finish() {
    divide();
    if (is_turned(params.value_format)) turn_rows();
    for (int r = 0; r < 2; ++r) {
      if (row_of(r) / params.group() >= tile.tokens) continue;
      const size_t at = out_row(row_of(r)) * params.rows.value_dim + first_dim + 2 * t;
      for (int i = 0; i < own_dims(); i += 8) {
        const float low = totals(r)[i], high = totals(r)[i + 1];
        if (params.out_f32 != nullptr)
          *reinterpret_cast<float2*>(params.out_f32 + at + i) = make_float2(low, high);
        if (params.out != nullptr) {
          const uint32_t col =
              uint32_t(out_row(row_of(r)) % params.heads) * params.rows.value_dim + first_dim + i + 2 * t;
          const uint32_t token = tile.token + row_of(r) / params.group();
          *reinterpret_cast<uint32_t*>(params.out + activation_place(params.out_tokens, token, col)) =
              ptx::pack_bf16(low, high);
        }
      }
    }
  }
};

template <class KeyNumber, class ValueNumber, int kMostDim>
__global__ void __launch_bounds__(32 * GeneralLayout<kMostDim>::kWarps, 1)
    general_attention(const AttentionParams params, const PrefillTile* tiles) {
  extern __shared__ __align__(16) uint8_t memory[];
  constexpr uint32_t kParts = kPrefillRows / GeneralLayout<kMostDim>::kRows;
  const PrefillTile tile = tiles[blockIdx.x / kParts];
  const uint32_t first_row = blockIdx.x % kParts * GeneralLayout<kMostDim>::kRows;
  if (first_row / params.group() >= tile.tokens) return;  // all rows are beyond the tile's
  GeneralRows<KeyNumber, ValueNumber, kMostDim>{params, tile, first_row, memory}.run();
}

template <class KeyNumber, class ValueNumber, int kMostDim>
void launch(const AttentionParams& params, const PrefillTile* tiles, uint32_t count, cudaStream_t stream) {
  using Layout = GeneralLayout<kMostDim>;
  const auto kernel = general_attention<KeyNumber, ValueNumber, kMostDim>;
  CUDA_CHECK(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, Layout::kBytes));
  kernel<<<count*(kPrefillRows / Layout::kRows), 32 * Layout::kWarps, Layout::kBytes, stream>>>(params,
                                                                                                tiles);
  CUDA_CHECK(cudaGetLastError());
}

template <HalfKind kind>
using NumberOf = std::conditional_t<kind == HalfKind::bf16, Bf16, F16>;

template <int kMostDim>
struct GeneralLaunches {
  template <HalfKind key_kind, HalfKind value_kind>
  auto of() const {
    return launch<NumberOf<key_kind>, NumberOf<value_kind>, kMostDim>;
  }
};

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

void launch_general_attention(const AttentionParams& params, const PrefillTile* tiles, uint32_t count,
                              cudaStream_t stream) {
  const PagedRows& rows = params.rows;
  CHECK(rows.key_dim % 8 == 0 && rows.key_dim <= kMostHeadDim && rows.value_dim % 8 == 0 &&
        rows.value_dim <= kMostHeadDim);
  CHECK(has_aligned_rows(params) && params.numbers == numbers_of(params.key_format));
  CHECK(params.group() <= kMostGroup);
  if (count == 0) return;
  const uint32_t most = std::max(rows.key_dim, rows.value_dim);
  const KvFormat keys = params.key_format, values = params.value_format;
  (most <= 64    ? for_kinds(keys, values, GeneralLaunches<64>())
   : most <= 128 ? for_kinds(keys, values, GeneralLaunches<128>())
   : most <= 256 ? for_kinds(keys, values, GeneralLaunches<256>())
                 : for_kinds(keys, values, GeneralLaunches<kMostHeadDim>()))(params, tiles, count, stream);
}

}  // namespace quire::cuda
