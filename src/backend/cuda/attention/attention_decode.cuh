#pragma once

#include <cstdint>

#include "backend/cuda/attention/attention_decode_output.cuh"
#include "backend/cuda/attention/attention_decode_sides.cuh"

namespace quire::cuda {

// The four warps that compute.
template <class Sides, int kHeadDim, int kColumnTiles>
struct DecodeRows {
  using Layout = DecodeLayout<kHeadDim, kColumnTiles>;
  using Rings = DecodeRings<kHeadDim, kColumnTiles>;
  static constexpr int kColumns = Layout::kColumns;
  static constexpr int kDimTiles = DecodeShape<kHeadDim>::kDimTiles;

  const DecodeArgs& args;
  const Rings rings;
  uint8_t* shared;
  const typename Sides::Keys key_side{args};
  const typename Sides::Values value_side{args};
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;

  // The unit.
  DecodeUnit unit;
  uint32_t kv_head, columns;
  uint32_t queries[kColumnTiles][kHeadDim / 16][2];
  uint32_t first[kColumnTiles][2],
      last[kColumnTiles][2];  // keys that the columns 8n + 2t and 8n + 2t + 1 see
  float references[kColumnTiles][2];
  float values[kColumnTiles][kDimTiles][4];
  float sum;  // on the last kColumnTiles warps: of column 8n + g, keys of lane t

  __device__ __forceinline__ float* largest() const {
    return reinterpret_cast<float*>(shared + Layout::kLargest);
  }
  __device__ __forceinline__ float* factors() const {
    return reinterpret_cast<float*>(shared + Layout::kFactors);
  }
  __device__ __forceinline__ float* sums() const { return reinterpret_cast<float*>(shared + Layout::kSums); }
  __device__ __forceinline__ uint16_t* shares() const {
    return reinterpret_cast<uint16_t*>(shared + Layout::kShares);
  }
  __device__ __forceinline__ int summed_tile() const { return warp - (kDecodeWarps - kColumnTiles); }
  __device__ __forceinline__ void meet() const { ptx::meet(1, 32 * kDecodeWarps); }

  // Gives a place of a ring back. `read` are bits of what was computed from it: who arrives depends on them, so that nobody can
  // before all loads from the place have ended. An arrival alone does not wait for loads of matrices that are under way.
  __device__ __forceinline__ void release(uint32_t empty, uint32_t read) const {
    const int who = __any_sync(~0u, read == 0xffffffffu) ? 1 : 0;
    if (lane == who) ptx::arrive(empty);
  }

  // Columns beyond the unit's repeat its last one: cheaper than zeros, and never stored.
  __device__ __forceinline__ uint32_t real_column(uint32_t column) const { return min(column, columns - 1); }
  __device__ __forceinline__ uint32_t head_of(uint32_t column) const {
    return kv_head * args.group.size + args.group.head_of(column);
  }

  __device__ __forceinline__ void begin(const DecodeUnit& next, uint32_t head) {
    unit = next;
    kv_head = head;
    columns = unit.tokens * args.group.size;
#pragma unroll
    for (int n = 0; n < kColumnTiles; ++n) {
      const uint32_t column = real_column(8 * n + g);
      const size_t row = size_t(unit.token + args.group.token_of(column)) * args.heads + head_of(column);
#pragma unroll
      for (int k = 0; k < kHeadDim / 16; ++k)
        key_side.load_query(args.query + row * kHeadDim, k, queries[n][k]);
#pragma unroll
      for (int e = 0; e < 2; ++e) {
        last[n][e] = unit.row + args.group.token_of(real_column(8 * n + 2 * t + e));
        first[n][e] = first_visible(last[n][e], args.window);
      }
    }
  }

  __device__ __forceinline__ void begin_split() {
#pragma unroll
    for (int n = 0; n < kColumnTiles; ++n) {
      references[n][0] = references[n][1] = -infinity();
#pragma unroll
      for (int i = 0; i < kDimTiles; ++i)
        values[n][i][0] = values[n][i][1] = values[n][i][2] = values[n][i][3] = 0;
    }
    sum = 0;
  }

  // Caps the scores of this warp's chunk and takes out keys that a column does not see.
  __device__ __forceinline__ void mask(float (&scores)[kColumnTiles][2][4], uint32_t key) const {
    if (args.scale.into_cap > 0) {
#pragma unroll
      for (int i = 0; i < 8 * kColumnTiles; ++i) {
        float& s = scores[i / 8][i / 4 % 2][i % 4];
        s = capped(s, args.scale.into_cap);
      }
    }
#pragma unroll
    for (int n = 0; n < kColumnTiles; ++n) {
#pragma unroll
      for (int i = 0; i < 2; ++i) {
#pragma unroll
        for (int e = 0; e < 4; ++e) {
          const uint32_t k = key + key_side.key_of(i, e / 2);
          float& s = scores[n][i][e];
          if (k > last[n][e % 2] || k < first[n][e % 2]) s = -infinity();
        }
      }
    }
  }

  // Shares of this warp's keys, whose first is the block's key number 32 * warp.
  // `chunk`: their values.
  __device__ __forceinline__ void share(const float (&scores)[kColumnTiles][2][4], uint32_t chunk) const {
#pragma unroll
    for (int row = 0; row < 4; ++row) {
      const int key = key_side.key_of(row / 2, row % 2);
      const float factor = value_side.factor_of(chunk, key);
#pragma unroll
      for (int n = 0; n < kColumnTiles; ++n) {
#pragma unroll
        for (int e = 0; e < 2; ++e) {
          const float p = exp2_of(
              fused(scores[n][row / 2][row % 2 * 2 + e], args.scale.scale, offset_of(references[n][e])));
          const int at = (8 * n + 2 * t + e) * kShareStride + warp * 32 + key;
          sums()[at] = p;
          shares()[at] = value_side.rounded(p, factor);
        }
      }
    }
  }

  // Adds the values of a chunk, the block's c-th, under its shares.
  __device__ __forceinline__ void add_values(uint32_t c, uint32_t chunk) {
#pragma unroll
    for (int k = 0; k < 2; ++k) {
      uint32_t b[kColumnTiles][2];
#pragma unroll
      for (int n = 0; n < kColumnTiles; ++n) {
        const auto* at = reinterpret_cast<const uint32_t*>(shares() + (8 * n + g) * kShareStride + c * 32 +
                                                           k * 16 + 2 * t);
        b[n][0] = at[0];
        b[n][1] = at[4];
      }
      uint32_t a[kDimTiles][4];
      value_side.load(a, chunk, k);
#pragma unroll
      for (int i = 0; i < kDimTiles; ++i) {
#pragma unroll
        for (int n = 0; n < kColumnTiles; ++n) value_side.mma(values[n][i], a[i], b[n][0], b[n][1]);
      }
    }
  }

  // Unrounded shares of a chunk, of this lane's column and keys: loaded before the products, added behind them.
  __device__ __forceinline__ void load_sums(uint32_t c, float2 (&pairs)[4]) const {
    const float* at = sums() + (8 * summed_tile() + g) * kShareStride + c * 32 + 2 * t;
#pragma unroll
    for (int j = 0; j < 4; ++j) pairs[j] = *reinterpret_cast<const float2*>(at + 8 * j);
  }

  __device__ __forceinline__ void add_sums(const float2 (&pairs)[4]) {
#pragma unroll
    for (int j = 0; j < 4; ++j) sum = (sum + pairs[j].x) + pairs[j].y;
  }

  __device__ __forceinline__ void raise_references(float (&scores)[kColumnTiles][2][4]) {
    float x[kColumnTiles][2];
#pragma unroll
    for (int n = 0; n < kColumnTiles; ++n) {
#pragma unroll
      for (int e = 0; e < 2; ++e) {
        x[n][e] = larger(larger(scores[n][0][e], scores[n][0][e + 2]),
                         larger(scores[n][1][e], scores[n][1][e + 2]));
#pragma unroll
        for (int w = 4; w < 32; w *= 2) x[n][e] = larger(x[n][e], __shfl_xor_sync(~0u, x[n][e], w));
        if (g == 0) largest()[warp * kColumns + 8 * n + 2 * t + e] = x[n][e];
      }
    }
    meet();
#pragma unroll
    for (int n = 0; n < kColumnTiles; ++n) {
#pragma unroll
      for (int e = 0; e < 2; ++e) {
        const int column = 8 * n + 2 * t + e;
#pragma unroll
        for (int w = 0; w < kDecodeWarps; ++w) x[n][e] = larger(x[n][e], largest()[w * kColumns + column]);
        const float factor = raise_reference(x[n][e], args.scale.scale, references[n][e]);
#pragma unroll
        for (int i = 0; i < kDimTiles; ++i) {
          values[n][i][e] *= factor;
          values[n][i][e + 2] *= factor;
        }
        if (warp == 0 && g == 0) factors()[column] = factor;
      }
    }
  }

  __device__ __forceinline__ void compute(uint32_t split, typename Rings::Place& key_place,
                                          typename Rings::Place& value_place) {
    const KeySpan keys = keys_of_split(split, unit.row, unit.tokens, args.window);
    for (uint32_t key = keys.begin; key < keys.end; key += kBlockKeys) {
      const int chunks = int(chunks_of_block(key, keys.end));
      float scores[kColumnTiles][2][4];
#pragma unroll
      for (int n = 0; n < kColumnTiles; ++n)
#pragma unroll
        for (int i = 0; i < 2; ++i)
#pragma unroll
          for (int e = 0; e < 4; ++e) scores[n][i][e] = warp < chunks ? 0.0f : -infinity();
      if (warp < chunks) {
        const auto own = key_place.after(warp);
        ptx::wait_barrier(rings.keys_full(own.index), own.parity);
        key_side.template score<kColumnTiles>(scores, rings.keys(own.index), queries);
        release(rings.keys_empty(own.index), bits_of(scores[0][0][0]) & bits_of(scores[0][1][0]) &
                                                 bits_of(scores[0][0][2]) & bits_of(scores[0][1][2]));
        mask(scores, key + warp * kChunkKeys);
      }
      key_place.advance(chunks);
      raise_references(scores);
      if (warp < chunks) {
        const auto own = value_place.after(warp);
        if (value_side.needs_rows_for_shares()) ptx::wait_barrier(rings.values_full(own.index), own.parity);
        share(scores, rings.values(own.index));
      }
      meet();
      if (summed_tile() >= 0) sum *= factors()[8 * summed_tile() + g];
      for (int c = 0; c < chunks; ++c, value_place.advance(1)) {
        ptx::wait_barrier(rings.values_full(value_place.index), value_place.parity);
        float2 pairs[4];
        if (summed_tile() >= 0) load_sums(c, pairs);
        add_values(c, rings.values(value_place.index));
        if (summed_tile() >= 0) add_sums(pairs);
        uint32_t read = bits_of(values[0][0][0]);
#pragma unroll
        for (int i = 1; i < kDimTiles; ++i) read &= bits_of(values[0][i][0]);
        release(rings.values_empty(value_place.index), read);
      }
    }
  }

  // use(n, e, column) for the columns of this thread that are real.
  template <class Use>
  __device__ __forceinline__ void each_column(const Use& use) const {
#pragma unroll
    for (int n = 0; n < kColumnTiles; ++n) {
#pragma unroll
      for (int e = 0; e < 2; ++e) {
        const uint32_t column = 8 * n + 2 * t + e;
        if (column < columns) use(n, e, column);
      }
    }
  }

  __device__ __forceinline__ void finish(uint32_t split) {
    if (summed_tile() >= 0) {
      sum = sum + __shfl_xor_sync(~0u, sum, 1);
      sum = sum + __shfl_xor_sync(~0u, sum, 2);
      if (t == 0) factors()[8 * summed_tile() + g] = sum;
    }
    meet();
    const DecodeOutput<kHeadDim> output{args, unit, kv_head};
    if (unit.splits == 1 && is_turned(args.value_format)) {
      each_column([&](int n, int e, uint32_t column) {
        finish_column(n, e, column, output,
                      [&](uint32_t dim, float value) { sums()[column * kShareStride + dim] = value; });
      });
      meet();
      turn_columns(output);
    } else if (unit.splits == 1) {
      each_column([&](int n, int e, uint32_t column) {
        finish_column(n, e, column, output,
                      [&](uint32_t dim, float value) { output.write(column, dim, value); });
      });
    } else {
      each_column([&](int n, int e, uint32_t column) {
        leave_partial(n, e, output.partial(split - unit.first_split, column), column);
      });
      if constexpr (kColumnTiles == 1) {
        const bool is_last = split + 1 == unit.split + unit.here;
        if (is_last && unit.units > 0 && comes_last()) merge_columns(output);
      }
    }
  }

  // Whether all other units of these tokens have left their sums, which this block then sees.
  __device__ __forceinline__ bool comes_last() const {
    auto* result = reinterpret_cast<uint32_t*>(shared + Layout::kComesLast);
    meet();
    if (unit.units == 1) return true;
    if (threadIdx.x == 0) {
      uint32_t* counter = args.merge_counters + unit.first_place * args.kv_heads + kv_head;
      uint32_t before;
      asm volatile("atom.acq_rel.gpu.global.add.u32 %0, [%1], 1;" : "=r"(before) : "l"(counter) : "memory");
      *result = before + 1 == unit.units;
      if (before + 1 == unit.units) *counter = 0;  // as the next kernel wants it
    }
    meet();
    return *result != 0;
  }

  // A warp has a column at a time.
  __device__ __forceinline__ void merge_columns(const DecodeOutput<kHeadDim>& output) const {
    using Merged = MergedColumn<kHeadDim, Sides::kMergedAtOnce>;
#pragma unroll 1
    for (uint32_t column = warp; column < columns; column += kDecodeWarps) {
      Merged merged(output, column, lane);
      if (is_turned(args.value_format)) {
        float* row = sums() + column * kShareStride;
#pragma unroll
        for (int d = 0; d < Merged::kDims; ++d) row[lane * Merged::kDims + d] = merged.values.value[d];
        __syncwarp();
        turn(row, kHeadDim);
#pragma unroll
        for (int d = 0; d < Merged::kDims; ++d) merged.values.value[d] = row[lane * Merged::kDims + d];
      }
#pragma unroll
      for (int d = 0; d < Merged::kDims; ++d)
        output.write(column, lane * Merged::kDims + d, merged.values.value[d]);
    }
  }

  template <class Write>
  __device__ __forceinline__ void finish_column(int n, int e, uint32_t column,
                                                const DecodeOutput<kHeadDim>& output,
                                                const Write& write) const {
    float reference = references[n][e], total = factors()[column];
    const MergeWeights weights = output.merge_sink(column, reference, total);
    const float inverse = reciprocal(total);
#pragma unroll
    for (int i = 0; i < 2 * kDimTiles; ++i)
      write(uint32_t(value_side.dim_of(i / 2, i % 2)),
            merged(values[n][i / 2][e + i % 2 * 2], 0.0f, weights) * inverse);
  }

  // Where the unrounded shares were; a warp has a column at a time.
  __device__ __forceinline__ void turn_columns(const DecodeOutput<kHeadDim>& output) const {
    static_assert(kHeadDim <= kShareStride);
    for (uint32_t column = warp; column < columns; column += kDecodeWarps) {
      float* row = sums() + column * kShareStride;
      turn(row, kHeadDim);
      for (uint32_t dim = lane; dim < kHeadDim; dim += 32) output.write(column, dim, row[dim]);
    }
  }

  __device__ __forceinline__ void leave_partial(int n, int e, float* to, uint32_t column) const {
#pragma unroll
    for (int i = 0; i < 2 * kDimTiles; ++i)
      to[value_side.dim_of(i / 2, i % 2)] = values[n][i / 2][e + i % 2 * 2];
    if (warp == 0 && g == 0)
      *reinterpret_cast<float2*>(to + kHeadDim) = make_float2(references[n][e], factors()[column]);
  }
};

template <class Sides, int kHeadDim, int kColumnTiles>
__global__ void __launch_bounds__(kDecodeThreads, 2)
    decode_attention(const __grid_constant__ CUtensorMap keys, const __grid_constant__ CUtensorMap values,
                     const DecodeArgs args) {
#if QUIRE_CUDA_HOPPER
  using Rows = DecodeRows<Sides, kHeadDim, kColumnTiles>;
  extern __shared__ uint8_t memory[];
  const uint32_t address = ptx::shared_address(memory), begin = (address + 1023) & ~1023u;
  const typename Rows::Rings rings{begin};
  if (threadIdx.x == 0) rings.init();
  __syncthreads();
  if (threadIdx.x / 32 == kDecodeWarps) {
    const PagedRows& pages = args.rows;
    const ChunkCopies key_copies = {is_float(args.key_format) ? &keys : nullptr,
                                    pages.layer,
                                    pages.page_bytes,
                                    pages.head_bytes,
                                    args.key_row_bytes,
                                    args.box_rows};
    const ChunkCopies value_copies = {is_float(args.value_format) ? &values : nullptr,
                                      pages.layer + pages.page_tokens * pages.key_row_bytes,
                                      pages.page_bytes,
                                      pages.head_bytes,
                                      args.value_row_bytes,
                                      args.box_rows};
    return fetch_chunks(key_copies, value_copies, args, rings);
  }
  ptx::wait_for_kernel_before();
  if (args.next_comes_early) ptx::launch_dependents();
  Rows rows{args, rings, memory + (begin - address)};
  typename Rows::Rings::Place key_place, value_place;
  const uint32_t all = args.unit_count * args.kv_heads;
  DecodeUnit next = {};
  if (blockIdx.x < all) next = args.units[blockIdx.x / args.kv_heads];
  for (uint32_t u = blockIdx.x; u < all; u += gridDim.x) {
    const DecodeUnit unit = next;
    if (u + gridDim.x < all) next = args.units[(u + gridDim.x) / args.kv_heads];
    if (unit.tokens == 0) continue;
    rows.begin(unit, u % args.kv_heads);
    const auto compute = [&](uint32_t split) {
      rows.begin_split();
      rows.compute(split, key_place, value_place);
      rows.finish(split);
    };
    if constexpr (kColumnTiles == 1) {
      for (uint32_t split = unit.split; split < unit.split + unit.here; ++split) compute(split);
    } else {
      compute(unit.split);
    }
  }
#endif
}

}  // namespace quire::cuda
