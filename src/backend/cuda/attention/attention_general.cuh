#pragma once

#include <cstdint>

#include "backend/cuda/attention/attention_general_fetch.cuh"
#include "backend/cuda/attention/kv_row_codes.cuh"
#include "backend/cuda/matmul/activation_layout.h"

// Attention for every architecture, head size and format of pages by mma.sync: slower than the kernels for Hopper, with the same bits.
// Sixteen rows of queries have as many warps as their values need. Of a chunk of keys each warp scores some; the scores of a block of
// keys meet in shared memory, where each warp makes the shares of some rows; then each adds the values of its own dimensions under all
// of them. A thread has sums of two rows, g and g + 8.

namespace quire::cuda {

template <class Shape>
struct GeneralRows {
  static constexpr int kParts = Shape::kWarpParts, kKeyTiles = Shape::kKeyTiles;
  static constexpr int kDimTiles = Shape::kDimTiles, kSteps = int(Shape::kChunkKeys) / 16;
  static constexpr uint32_t kChunkKeys = Shape::kChunkKeys;

  const GeneralArgs& args;
  const GeneralTask& task;
  uint8_t* const memory;
  const AttentionParams& params = args.params;
  const uint32_t shared = ptx::shared_address(memory);
  const ScoreScale scale = score_scale(params.scale, params.soft_cap);
  const int warp = threadIdx.x / 32 / kParts, part = threadIdx.x / 32 % kParts;
  const int lane = threadIdx.x % 32, g = lane / 4, t = lane % 4, first_dim = part * Shape::kDims;
  GeneralFetch<Shape> rows{args, task, memory, shared};

  float values[4 * kDimTiles], totals[4 * kDimTiles];
  float total_reference[2], total_sum[2];
  uint32_t first_seen[2],
      last_seen[2];  // keys, of the two rows. Rows beyond the task's see what its last one sees

  __device__ __forceinline__ uint32_t own_row(int which) const { return warp * 16 + g + 8 * which; }
  __device__ __forceinline__ uint32_t row_of(int which) const { return task.first_row + own_row(which); }
  __device__ __forceinline__ bool is_there(int which) const {
    return row_of(which) < task.tokens * args.group.size;
  }
  __device__ __forceinline__ size_t out_row(uint32_t row) const {
    return size_t(task.token + args.group.token_of(row)) * params.heads + task.kv_head * args.group.size +
           args.group.head_of(row);
  }
  __device__ __forceinline__ int own_dims() const {
    return min(Shape::kDims, max(0, int(params.rows.value_dim) - first_dim));
  }
  __device__ __forceinline__ float* scores(int which) const {
    return reinterpret_cast<float*>(memory + args.memory.scores) + own_row(which) * kScorePitch + 2 * t;
  }
  __device__ __forceinline__ GeneralRow& known(uint32_t row) const {
    return reinterpret_cast<GeneralRow*>(memory + args.memory.rows)[row];
  }

  __device__ __forceinline__ bool is_whole() const { return Shape::kTilesAlone || task.is_whole; }

  __device__ __forceinline__ void copy_queries() const {
    rows.copy_queries([&](uint32_t r) -> const std::byte* {
      if (task.first_row + r >= task.tokens * args.group.size) return nullptr;
      return reinterpret_cast<const std::byte*>(params.query +
                                                out_row(task.first_row + r) * params.rows.query_dim());
    });
  }

  // Products of this warp's keys of a chunk with the queries; of both, `dim` numbers from byte `begin` of a row on.
  template <class Number>
  __device__ __forceinline__ void multiply_keys(uint32_t slot, uint32_t begin_byte, uint32_t dim,
                                                float (&sums)[kKeyTiles][4]) const {
    const uint32_t queries =
        shared + begin_byte + (warp * 16 + lane % 16) * args.memory.pitch + lane / 16 * 16;
    const uint32_t key = part * kKeyTiles * 8 + (kKeyTiles > 1 ? lane / 16 * 8 : 0) + lane % 8;
    const uint32_t keys = shared + begin_byte + slot + key * args.memory.pitch + lane / 8 % 2 * 16;
    // Several steps' matrices are asked for before the first of them is multiplied: what is asked for stays in this order.
    constexpr uint32_t kAtOnce = kKeyTiles <= 2 && !Shape::kSavesRegisters ? 4 : 2;
    for (uint32_t begin = 0; begin < dim; begin += 16 * kAtOnce) {
      uint32_t a[kAtOnce][4], b[kAtOnce][2 * kKeyTiles];
#pragma unroll
      for (uint32_t i = 0; i < kAtOnce; ++i) {
        const uint32_t k = begin + 16 * i;
        if (k >= dim) break;
        ptx::load_matrices(a[i], queries + k * 2);
        if constexpr (kKeyTiles == 1) {
          ptx::load_matrices(b[i], keys + k * 2);
        } else {
#pragma unroll
          for (int pair = 0; pair < kKeyTiles; pair += 2) {
            uint32_t four[4];
            ptx::load_matrices(four, keys + pair * 8 * args.memory.pitch + k * 2);
#pragma unroll
            for (int j = 0; j < 4; ++j) b[i][2 * pair + j] = four[j];
          }
        }
      }
#pragma unroll
      for (uint32_t i = 0; i < kAtOnce; ++i) {
        if (begin + 16 * i >= dim) break;
#pragma unroll
        for (int tile = 0; tile < kKeyTiles; ++tile)
          Number::mma(sums[tile], a[i], b[i][2 * tile], b[i][2 * tile + 1]);
      }
    }
  }

  __device__ __forceinline__ void multiply_part(HalfKind numbers, uint32_t slot, uint32_t begin_byte,
                                                uint32_t dim, float (&sums)[kKeyTiles][4]) const {
#pragma unroll
    for (int i = 0; i < 4 * kKeyTiles; ++i) sums[i / 4][i % 4] = 0;
    if (numbers == HalfKind::bf16) {
      multiply_keys<Bf16>(slot, begin_byte, dim, sums);
    } else {
      multiply_keys<F16>(slot, begin_byte, dim, sums);
    }
  }

  // The scores of this warp's keys of a chunk, as the rule wants them, to where all see them.
  __device__ __forceinline__ void score_chunk(uint32_t slot, const GeneralChunk<Shape>& at) const {
    if (Shape::kScoringParts < kParts && part >= Shape::kScoringParts) return;
    const uint32_t key = at.key();
    float sums[kKeyTiles][4];
    multiply_part(params.numbers, slot, 0, params.rows.key_dim, sums);
    const float* factors = rows.key_factors(slot);
    const bool scaled = has_factors(params.key_format);
    [[maybe_unused]] float more[kKeyTiles][4];
    [[maybe_unused]] const float* more_factors = rows.value_factors(at.blocks) + at.chunk * kChunkKeys;
    [[maybe_unused]] const bool more_scaled = has_factors(params.value_format);
    if constexpr (Shape::kWholeRows)
      multiply_part(numbers_of(params.value_format), slot, args.memory.behind, params.rows.value_dim, more);
#pragma unroll
    for (int r = 0; r < 2; ++r) {
#pragma unroll
      for (int tile = 0; tile < kKeyTiles; ++tile) {
        const uint32_t in_chunk = (part * kKeyTiles + tile) * 8;
        float two[2];
#pragma unroll
        for (int e = 0; e < 2; ++e) {
          const uint32_t k = in_chunk + 2 * t + e;
          float score = sums[tile][2 * r + e];
          if (scaled) score *= factors[k];
          if constexpr (Shape::kWholeRows) {
            const float rest = more[tile][2 * r + e];
            score = score + (more_scaled ? rest * more_factors[k] : rest);
          }
          if (scale.into_cap > 0) score = capped(score, scale.into_cap);
          two[e] = key + k > last_seen[r] || key + k < first_seen[r] ? -infinity() : score;
        }
        *reinterpret_cast<float2*>(scores(r) + at.chunk * kChunkKeys + in_chunk) =
            make_float2(two[0], two[1]);
      }
    }
  }

  // Scores to shares, of some rows by each warp; a lane has four keys. `keys`: that have scores.
  __device__ __forceinline__ void share(uint32_t keys, const float* factors) const {
    constexpr uint32_t kOwn = Shape::kRows / (Shape::kThreads / 32);
    const bool scaled = has_factors(params.value_format);
    const bool is_bf16 = numbers_of(params.value_format) == HalfKind::bf16;
    const uint32_t first = threadIdx.x / 32 * kOwn;
    auto* const all = reinterpret_cast<float*>(memory + args.memory.scores);
#pragma unroll 2
    for (uint32_t r = first; r < first + kOwn; ++r) {
      float4& mine = reinterpret_cast<float4*>(all + r * kScorePitch)[lane];
      float4 p = {-infinity(), -infinity(), -infinity(), -infinity()};
      if (4 * uint32_t(lane) < keys) p = mine;
      float largest = larger(larger(p.x, p.y), larger(p.z, p.w));
#pragma unroll
      for (int width = 16; width > 0; width /= 2)
        largest = larger(largest, __shfl_xor_sync(~0u, largest, width));
      GeneralRow& row = known(r);
      float reference = row.reference;
      __syncwarp();
      const float factor = raise_reference(largest, scale.scale, reference), offset = offset_of(reference);
      if (lane == 0) {
        row.reference = reference;
        row.factor = factor;
      }
      p.x = exp2_of(fused(p.x, scale.scale, offset));
      p.y = exp2_of(fused(p.y, scale.scale, offset));
      p.z = exp2_of(fused(p.z, scale.scale, offset));
      p.w = exp2_of(fused(p.w, scale.scale, offset));
      mine = p;
      if (scaled) {
        const float4 f = reinterpret_cast<const float4*>(factors)[lane];
        p = {p.x * f.x, p.y * f.y, p.z * f.z, p.w * f.w};
      }
      const uint2 packed = is_bf16 ? make_uint2(Bf16::pack(p.x, p.y), Bf16::pack(p.z, p.w))
                                   : make_uint2(F16::pack(p.x, p.y), F16::pack(p.z, p.w));
      reinterpret_cast<uint2*>(memory + args.memory.shares + r * kSharePitch)[lane] = packed;
    }
    __syncwarp();
    for (uint32_t i = lane; i < 4 * kOwn; i += 32) add_sum(first + i / 4, i % 4, keys);
  }

  // The t-th of a row's four sums: of keys 8j + 2t and the next one, in order.
  __device__ __forceinline__ void add_sum(uint32_t r, uint32_t t_th, uint32_t keys) const {
    const float* from =
        reinterpret_cast<const float*>(memory + args.memory.scores) + r * kScorePitch + 2 * t_th;
    GeneralRow& row = known(r);
    float sum = row.sums[t_th] * row.factor;
#pragma unroll 4
    for (uint32_t j = 0; j < keys; j += 8) {
      const float2 two = *reinterpret_cast<const float2*>(from + j);
      sum = (sum + two.x) + two.y;
    }
    row.sums[t_th] = sum;
  }

  // Adds the values of a chunk, the block's `chunk`-th, under its shares.
  template <class Number>
  __device__ __forceinline__ void add_values(uint32_t slot, uint32_t chunk) {
    const uint32_t own = shared + args.memory.shares + (warp * 16 + lane % 16) * kSharePitch +
                         chunk * kChunkKeys * 2 + lane / 16 * 16;
    const uint32_t from = shared + slot + args.memory.behind +
                          (lane / 8 % 2 * 8 + lane % 8) * args.memory.pitch + (first_dim + lane / 16 * 8) * 2;
#pragma unroll
    for (int step = 0; step < kSteps; ++step) {
      constexpr int kAtOnce = Shape::kSavesRegisters ? 4 : kDimTiles;
      uint32_t a[4];
      ptx::load_matrices(a, own + step * 32);
#pragma unroll
      for (int begin = 0; begin < kDimTiles; begin += kAtOnce) {
        uint32_t b[kAtOnce / 2][4];
#pragma unroll
        for (int i = 0; i < kAtOnce; i += 2) {
          if (first_dim + (begin + i) * 8 >= int(params.rows.value_dim)) break;
          ptx::load_matrices_transposed(b[i / 2], from + step * 16 * args.memory.pitch + (begin + i) * 16);
        }
#pragma unroll
        for (int i = 0; i < kAtOnce; i += 2) {
          if (first_dim + (begin + i) * 8 >= int(params.rows.value_dim)) break;
          add_product<Number>(values + 4 * (begin + i), a, b[i / 2][0], b[i / 2][1]);
          add_product<Number>(values + 4 * (begin + i) + 4, a, b[i / 2][2], b[i / 2][3]);
        }
      }
    }
  }

  // What was added under a reference that has risen.
  __device__ __forceinline__ void follow_references() {
    const float factors[2] = {known(own_row(0)).factor, known(own_row(1)).factor};
#pragma unroll
    for (int i = 0; i < 4 * kDimTiles; ++i) values[i] *= factors[i / 2 % 2];
  }

  template <class Number>
  __device__ __forceinline__ static void add_product(float* d, const uint32_t (&a)[4], uint32_t b0,
                                                     uint32_t b1) {
    float sums[4] = {d[0], d[1], d[2], d[3]};
    Number::mma(sums, a, b0, b1);
#pragma unroll
    for (int i = 0; i < 4; ++i) d[i] = sums[i];
  }

  __device__ __forceinline__ float whole_sum(int r) const {
    const float4 sums = *reinterpret_cast<const float4*>(known(own_row(r)).sums);
    return (sums.x + sums.y) + (sums.z + sums.w);
  }

  __device__ __forceinline__ void merge_split() {
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const float whole = whole_sum(r);
      const MergeWeights weights = merge_weights(known(own_row(r)).reference, total_reference[r]);
      total_sum[r] = merged(total_sum[r], whole, weights);
#pragma unroll
      for (int i = 0; i < 4 * kDimTiles; ++i)
        if (i / 2 % 2 == r) totals[i] = merged(totals[i], values[i], weights);
    }
  }

  // Before anybody shares.
  __device__ __forceinline__ void begin_split() {
#pragma unroll
    for (int i = 0; i < 4 * kDimTiles; ++i) values[i] = 0;
  }
  __device__ __forceinline__ void clear_rows() const {
    if (threadIdx.x < Shape::kRows) known(threadIdx.x) = {{0, 0, 0, 0}, -infinity(), 1.0f, {0, 0}};
  }

  __device__ __forceinline__ void attend(uint32_t slot, const GeneralChunk<Shape>& at) {
    if (!at.is_values) {
      if (at.is_first_of_split()) clear_rows();  // all have merged the split before
      return score_chunk(slot, at);
    }
    if (at.chunk == 0) {
      share(at.keys(), rows.value_factors(at.blocks));
      __syncthreads();
      follow_references();
    }
    add_chunk(slot, at.chunk);
    if (!at.is_last_of_split() || !task.is_whole) return;
    merge_split();
    begin_split();
  }
  __device__ __forceinline__ void add_chunk(uint32_t slot, uint32_t chunk) {
    if (numbers_of(params.value_format) == HalfKind::bf16) {
      add_values<Bf16>(slot, chunk);
    } else {
      add_values<F16>(slot, chunk);
    }
  }

  __device__ __forceinline__ void run() {
    begin();
    if constexpr (Shape::kWholeRows) {
      if (Shape::kHasAllChunks || args.memory.slots == Shape::kBlockChunks) {
        go_through_blocks();
      } else {
        go_through_chunks();
      }
    } else {
      go_through_ring();
    }
    if (Shape::kUnitsAlone && task.is_whole) merge_split();
    if (is_whole()) {
      finish();
    } else {
      leave_partial();
    }
  }

  // Rows that are whole stay where they came until their values are added: the chunks of a block have a slot each. When all have left
  // one, that of the next block comes.
  __device__ __forceinline__ void go_through_blocks() {
    constexpr uint32_t kChunks = Shape::kBlockChunks;
    static_assert(kChunks == 2 || kChunks == 4);
    for (uint32_t chunk = 0; chunk < kChunks; ++chunk) rows.fetch_whole(chunk);
    rows.next_block();
    GeneralChunk<Shape> at(task, params.window);
#pragma unroll 1
    while (at.split != task.end_split) {
#pragma unroll 1
      for (uint32_t chunk = 0; chunk < at.chunks; ++chunk) {
        wait_for_chunk(kChunks - 1 - chunk);
        __syncthreads();  // it has come for all; and all have merged the split before
        at.chunk = chunk;
        if (at.is_first_of_split()) clear_rows();
        score_chunk(rows.slot_at(chunk), at);
      }
      share_block(at);
#pragma unroll 1
      for (uint32_t chunk = 0; chunk < kChunks; ++chunk) {
        if (chunk < at.chunks) add_chunk(rows.slot_at(chunk), chunk);
        __syncthreads();  // all have left it
        rows.fetch_whole(chunk);
      }
      rows.next_block();
      end_block(at);
    }
  }

  // The same where there is memory for one chunk alone: its rows come twice.
  __device__ __forceinline__ void go_through_chunks() {
    GeneralChunk<Shape> at(task, params.window);
    const uint32_t slot = rows.slot_at(0);
    const auto bring = [&](uint32_t chunk) {
      __syncthreads();  // all have left what was there
      rows.fetch_whole(chunk);
      ptx::wait_copies<0>();
      __syncthreads();
      at.chunk = chunk;
    };
#pragma unroll 1
    while (at.split != task.end_split) {
#pragma unroll 1
      for (uint32_t chunk = 0; chunk < at.chunks; ++chunk) {
        bring(chunk);
        if (at.is_first_of_split()) clear_rows();
        score_chunk(slot, at);
      }
      share_block(at);
#pragma unroll 1
      for (uint32_t chunk = 0; chunk < at.chunks; ++chunk) {
        bring(chunk);
        add_chunk(slot, chunk);
      }
      rows.next_block();
      end_block(at);
    }
  }

  __device__ __forceinline__ static void wait_for_chunk(uint32_t younger) {
    switch (younger) {
      case 0:
        return ptx::wait_copies<0>();
      case 1:
        return ptx::wait_copies<1>();
      case 2:
        return ptx::wait_copies<2>();
      default:
        return ptx::wait_copies<3>();
    }
  }
  __device__ __forceinline__ void share_block(const GeneralChunk<Shape>& at) {
    __syncthreads();  // all scores are there
    share(at.keys(), rows.value_factors(at.blocks));
    __syncthreads();
    follow_references();
  }
  __device__ __forceinline__ void end_block(GeneralChunk<Shape>& at) {
    if (!Shape::kUnitsAlone && at.is_last_block() && is_whole()) {
      merge_split();
      begin_split();
    }
    at.chunk = 0;
    at.next_block(task, params.window);
  }

  __device__ __forceinline__ void begin() {
    copy_queries();
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      total_reference[r] = -infinity();
      total_sum[r] = 0;
      last_seen[r] = task.row + min(args.group.token_of(row_of(r)), task.tokens - 1);
      first_seen[r] = first_visible(last_seen[r], params.window);
    }
#pragma unroll
    for (int i = 0; i < 4 * kDimTiles; ++i) totals[i] = 0;
    begin_split();
  }

  __device__ __forceinline__ void go_through_ring() {
    const uint32_t slots = args.memory.slots;
    GeneralChunk<Shape> at(task, params.window);
    uint32_t slot = 0;
#pragma unroll 1
    for (uint32_t fetched = 1; at.split != task.end_split; ++fetched) {
      const bool is_full = fetched >= slots;  // before that, there is nothing to do but to fetch
      if (is_full && slots > 1) rows.wait_for_oldest();
      __syncthreads();  // the chunk has come for all, and all have left the one before, whose slot is filled now
      rows.fetch();
      if (!is_full) continue;
      if (slots == 1) {
        ptx::wait_copies<0>();
        __syncthreads();
      }
      attend(rows.slot_at(slot), at);
      at.advance(task, params.window);
      slot = rows.slot_after(slot);
    }
  }

  // use(i, dim): the values i and i + 1 of a row are those of this dimension and the next one.
  template <class Use>
  __device__ __forceinline__ void each_pair(int r, const Use& use) const {
#pragma unroll
    for (int i = 0; i < kDimTiles; ++i)
      if (8 * i < own_dims()) use(4 * i + 2 * r, uint32_t(first_dim + 8 * i + 2 * t));
  }

  __device__ __forceinline__ void leave_partial() const {
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const float whole = whole_sum(r);
      if (!is_there(r)) continue;
      float* to = general_partial(args, task.place, task.kv_head, row_of(r));
      each_pair(r, [&](int i, uint32_t dim) {
        *reinterpret_cast<float2*>(to + dim) = make_float2(values[i], values[i + 1]);
      });
      if (part == 0 && t == 0)
        *reinterpret_cast<float2*>(to + params.rows.value_dim) =
            make_float2(known(own_row(r)).reference, whole);
    }
  }

  // The result, where the totals are.
  __device__ __forceinline__ void divide() {
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      MergeWeights weights = {1.0f, 0.0f};
      if (params.sinks != nullptr) {
        const float sink = params.sinks[task.kv_head * args.group.size + args.group.head_of(row_of(r))];
        weights = merge_weights(sink * kLog2E, total_reference[r]);
        total_sum[r] = merged(total_sum[r], 1.0f, weights);
      }
      const float inverse = reciprocal(total_sum[r]);
#pragma unroll
      for (int i = 0; i < 4 * kDimTiles; ++i)
        if (i / 2 % 2 == r) totals[i] = merged(totals[i], 0.0f, weights) * inverse;
    }
  }

  // Rows are turned where they lie beside each other: where queries and chunks were.
  __device__ __forceinline__ void turn_totals() {
    const uint32_t dim = params.rows.value_dim;
    auto* rows = reinterpret_cast<float*>(memory);
    __syncthreads();
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      each_pair(r, [&](int i, uint32_t d) {
        *reinterpret_cast<float2*>(rows + own_row(r) * dim + d) = make_float2(totals[i], totals[i + 1]);
      });
    }
    __syncthreads();
    for (uint32_t row = threadIdx.x / 32; row < Shape::kRows; row += Shape::kThreads / 32)
      turn(rows + row * dim, dim);
    __syncthreads();
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      each_pair(r, [&](int i, uint32_t d) {
        const float2 two = *reinterpret_cast<const float2*>(rows + own_row(r) * dim + d);
        totals[i] = two.x;
        totals[i + 1] = two.y;
      });
    }
  }

  __device__ __forceinline__ void finish() {
    divide();
    if (is_turned(params.value_format)) turn_totals();
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      if (!is_there(r)) continue;
      const size_t row = out_row(row_of(r));
      each_pair(r, [&](int i, uint32_t dim) {
        if (params.out_f32 != nullptr)
          *reinterpret_cast<float2*>(params.out_f32 + row * params.rows.value_dim + dim) =
              make_float2(totals[i], totals[i + 1]);
        if (params.out != nullptr) {
          const uint32_t col = uint32_t(row % params.heads) * params.rows.value_dim + dim;
          const uint32_t token = task.token + args.group.token_of(row_of(r));
          *reinterpret_cast<uint32_t*>(params.out + activation_place(params.out_tokens, token, col)) =
              ptx::pack_bf16(totals[i], totals[i + 1]);
        }
      });
    }
  }
};

}  // namespace quire::cuda
