#pragma once

#include <cstdint>
#include <type_traits>

#include "backend/cuda/attention/attention_prefill_convert.cuh"
#include "backend/cuda/matmul/activation_layout.h"
#include "backend/cuda/numbers.cuh"

namespace quire::cuda {

// Keeps the compiler from moving registers over the instructions that run on (see wgmma.cuh).
template <int kCount>
__device__ __forceinline__ void pin(float (&registers)[kCount]) {
#pragma unroll
  for (int i = 0; i < kCount; ++i) asm volatile("" : "+f"(registers[i])::"memory");
}

// One warpgroup's 64 rows of a tile. A thread has two of them: of the warp's sixteen, g and g + 8. Scores of the next block are
// computed while the shares of the one before are, and while its values are added.
template <class KeyNumber, class ValueNumber, int kHeadDim>
struct PrefillRows {
  using Layout = PrefillLayout<kHeadDim>;
  using Place = StagePlace<Layout::kStages>;

  const PrefillArgs& args;
  const PrefillShared<kHeadDim> shared;
  const int group_index = threadIdx.x / 128, thread = threadIdx.x % 128;  // of the warpgroup
  const int warp = thread / 32, g = thread % 32 / 4, t = thread % 4;
  Place key_place = {}, value_place = {};

  // The tile.
  const PrefillTile* tile;     // shared memory
  float scores[64];            // [keys 8j + 2t and + 1, of row g and then of row g + 8]
  float values[kHeadDim / 2];  // of the split, [dimensions alike]
  uint32_t shares[8][4];       // as the product wants them: 16 keys each
  float reference[2], sum[2];  // of the split
  float factor[2];             // what the last block multiplied sum and values with
  float total_reference[2], total_sum[2];
  uint32_t last[2];  // the last key that a row sees

  __device__ __forceinline__ int row_of(int which) const {
    return group_index * 64 + warp * 16 + g + 8 * which;
  }
  __device__ __forceinline__ float4* totals() const {
    return reinterpret_cast<float4*>(shared.memory + Layout::kTotals + group_index * 64 * kHeadDim * 4) +
           thread;
  }
  __device__ __forceinline__ void meet_group() const { ptx::meet(3 + group_index, 128); }

  __device__ __forceinline__ void begin(const PrefillTile* next) {
    tile = next;
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      last[r] = tile->row + args.group.token_of(row_of(r));
      reference[r] = total_reference[r] = -infinity();
      sum[r] = total_sum[r] = 0;
    }
  }

  __device__ __forceinline__ void start_scores() {
    const uint64_t a = ptx::swizzled_operand(shared.queries() + group_index * 64 * 128);
    const uint64_t b = ptx::swizzled_operand(shared.keys(key_place.index));
#pragma unroll
    for (int k = 0; k < kHeadDim / 16; ++k) {
      const uint64_t step = k / 4 * (Layout::kHalfBytes >> 4) + k % 4 * 2;
      KeyNumber::wgmma(scores, a + step, b + step, k == 0 ? 0 : 1);
    }
  }

  // Values lie with their dimensions contiguous, halves of a row kHalfBytes apart; 16 keys are 16 rows of 128 bytes.
  __device__ __forceinline__ void start_values(int add) {
    const uint64_t b = (ptx::swizzled_operand(shared.values(value_place.index)) & ~(uint64_t(0x3fff) << 16)) |
                       uint64_t(Layout::kHalfBytes >> 4) << 16;
#pragma unroll
    for (int k = 0; k < 8; ++k)
      ValueNumber::template wgmma_transposed<kHeadDim>(values, shares[k], b + k * 128, k == 0 ? add : 1);
  }

  // What a thread's scores and shares are multiplied with, two keys at a time: of keys 8j + 2t and + 1.
  __device__ __forceinline__ void multiply(const uint16_t* factors) {
#pragma unroll
    for (int j = 0; j < 16; ++j) {
      const float2 pair = __half22float2(reinterpret_cast<const __half2*>(factors)[4 * j + t]);
#pragma unroll
      for (int i = 0; i < 4; ++i) scores[4 * j + i] *= i % 2 == 0 ? pair.x : pair.y;
    }
  }

  // Every warp for itself: it knows of its own products only that they have ended.
  __device__ __forceinline__ void release_keys() {
    int who = 0;
    if (has_factors(args.key_format)) {
      multiply(shared.key_factors(key_place.index));
      uint32_t read = ~0u;  // who arrives depends on all that was read, as in decode
#pragma unroll
      for (int j = 0; j < 16; ++j) read &= bits_of(scores[4 * j]);
      who = __any_sync(~0u, read == 0xffffffffu) ? 1 : 0;
    }
    if (thread % 32 == who) ptx::arrive(shared.keys_empty(key_place.index));
    key_place.advance();
  }
  __device__ __forceinline__ void release_values() {
    if (thread % 32 == 0) ptx::arrive(shared.values_empty(value_place.index));
    value_place.advance();
  }
  __device__ __forceinline__ void release_queries() const {
    if (thread % 32 == 0) ptx::arrive(shared.queries_empty());
  }

  __device__ __forceinline__ void mask(uint32_t block) {
    const uint32_t first_key = block * kBlockKeys, key = first_key + 2 * t;
    if (args.scale.into_cap > 0) {
#pragma unroll
      for (int i = 0; i < 64; ++i) scores[i] = capped(scores[i], args.scale.into_cap);
    }
    if (first_key + kBlockKeys - 1 > tile->row) {
#pragma unroll
      for (int i = 0; i < 64; ++i)
        if (key + i / 4 * 8 + i % 2 > last[i / 2 % 2]) scores[i] = -infinity();
    }
    if (first_key < first_visible(tile->row + tile->tokens - 1, args.window)) {
      const uint32_t first[2] = {first_visible(last[0], args.window), first_visible(last[1], args.window)};
#pragma unroll
      for (int i = 0; i < 64; ++i)
        if (key + i / 4 * 8 + i % 2 < first[i / 2 % 2]) scores[i] = -infinity();
    }
  }

  // Turns the scores of a block into shares, which are not rounded yet.
  __device__ __forceinline__ void share(uint32_t block) {
    mask(block);
    float offset[2];
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      float largest = larger(scores[2 * r], scores[2 * r + 1]);
#pragma unroll
      for (int j = 1; j < 16; ++j)
        largest = larger(largest, larger(scores[4 * j + 2 * r], scores[4 * j + 2 * r + 1]));
      largest = larger(largest, __shfl_xor_sync(~0u, largest, 1));
      largest = larger(largest, __shfl_xor_sync(~0u, largest, 2));
      factor[r] = raise_reference(largest, args.scale.scale, reference[r]);
      sum[r] *= factor[r];
      offset[r] = offset_of(reference[r]);
    }
#pragma unroll
    for (int i = 0; i < 64; ++i) {
      const int r = i / 2 % 2;
      scores[i] = exp2_of(fused(scores[i], args.scale.scale, offset[r]));
      sum[r] = sum[r] + scores[i];
    }
  }

  __device__ __forceinline__ void round_shares() {
    if (has_factors(args.value_format)) {
      ptx::wait_barrier(shared.values_full(value_place.index), value_place.parity);
      multiply(shared.value_factors(value_place.index));
    }
#pragma unroll
    for (int i = 0; i < 32; ++i) shares[i / 4][i % 4] = ValueNumber::pack(scores[2 * i], scores[2 * i + 1]);
  }

  // A warp may leave out what changes nothing: 1 * x is x.
  __device__ __forceinline__ void rescale() {
    if (!__any_sync(~0u, factor[0] != 1.0f || factor[1] != 1.0f)) return;
#pragma unroll
    for (int i = 0; i < kHeadDim / 2; ++i) values[i] *= factor[i / 2 % 2];
  }

  // Merges the split that `values` holds, with its reference and sum, into the totals; these stay in `values` after the last.
  enum class Split { inner, only, first, last };
  __device__ __forceinline__ void merge(const float (&split_reference)[2], const float (&split_sum)[2],
                                        Split which) {
    MergeWeights weights[2];
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      float whole = split_sum[r] + __shfl_xor_sync(~0u, split_sum[r], 1);
      whole = whole + __shfl_xor_sync(~0u, whole, 2);
      weights[r] = merge_weights(split_reference[r], total_reference[r]);
      total_sum[r] = merged(total_sum[r], whole, weights[r]);
    }
    if (which == Split::only) return;
#pragma unroll
    for (int k = 0; k < kHeadDim / 8; ++k) {
      float* v = values + 4 * k;
      if (which != Split::first) {
        const float4 total = totals()[128 * k];
        v[0] = merged(total.x, v[0], weights[0]);
        v[1] = merged(total.y, v[1], weights[0]);
        v[2] = merged(total.z, v[2], weights[1]);
        v[3] = merged(total.w, v[3], weights[1]);
      }
      if (which != Split::last) totals()[128 * k] = make_float4(v[0], v[1], v[2], v[3]);
    }
  }

  // The two warpgroups issue their products in turn, so that one computes shares while the other multiplies.
  __device__ __forceinline__ void take_turn() const {
    ptx::meet(1 + group_index, 256);
  }
  __device__ __forceinline__ void give_turn() const {
    asm volatile("bar.arrive %0, 256;" ::"r"(2 - group_index) : "memory");
  }

  __device__ __forceinline__ void compute(uint32_t number) {
    const BlockSpan blocks = blocks_of(*tile, args.window);
    ptx::wait_barrier(shared.queries_full(), number & 1);
    ptx::wait_barrier(shared.keys_full(key_place.index), key_place.parity);
    ptx::fence_products();
    start_scores();
    ptx::commit_products();
    ptx::wait_products<0>();
    pin(scores);
    if (blocks.begin + 1 == blocks.end) release_queries();
    release_keys();
    share(blocks.begin);
    round_shares();
    bool merged_any = false;
#pragma unroll 1
    for (uint32_t block = blocks.begin + 1; block < blocks.end; ++block) {
      ptx::wait_barrier(shared.keys_full(key_place.index), key_place.parity);
      take_turn();
      pin(scores);
      ptx::fence_products();
      start_scores();
      ptx::commit_products();
      ptx::wait_barrier(shared.values_full(value_place.index), value_place.parity);
      start_values(begins_split(block - 1, blocks) ? 0 : 1);
      ptx::commit_products();
      give_turn();
      ptx::wait_products<1>();
      pin(scores);
      release_keys();
      if (block + 1 == blocks.end) release_queries();
      const bool edge = block % (kSplitKeys / kBlockKeys) == 0;
      const float split_reference[2] = {reference[0], reference[1]}, split_sum[2] = {sum[0], sum[1]};
      if (edge) {
        reference[0] = reference[1] = -infinity();
        sum[0] = sum[1] = 0;
      }
      share(block);
      ptx::wait_products<0>();
      pin(values);
      pin(scores);  // shares are rounded from here on: the products before still read those of the last block
      release_values();
      if (edge) {
        merge(split_reference, split_sum, merged_any ? Split::inner : Split::first);
        merged_any = true;
      } else {
        rescale();
      }
      round_shares();
    }
    ptx::wait_barrier(shared.values_full(value_place.index), value_place.parity);
    pin(values);
    ptx::fence_products();
    start_values(begins_split(blocks.end - 1, blocks) ? 0 : 1);
    ptx::commit_products();
    ptx::wait_products<0>();
    pin(values);
    release_values();
    merge(reference, sum, merged_any ? Split::last : Split::only);
  }

  __device__ __forceinline__ static bool begins_split(uint32_t block, const BlockSpan& blocks) {
    return block % (kSplitKeys / kBlockKeys) == 0 || block == blocks.begin;
  }

  __device__ __forceinline__ size_t out_row(int row) const {
    return size_t(tile->token + args.group.token_of(row)) * args.heads + tile->kv_head * args.group.size +
           args.group.head_of(row);
  }

  __device__ __forceinline__ void finish() {
    MergeWeights weights[2] = {{1.0f, 0.0f}, {1.0f, 0.0f}};
    float inverse[2];
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      if (args.sinks != nullptr) {
        const float sink =
            args.sinks[tile->kv_head * args.group.size + args.group.head_of(row_of(r))] * kLog2E;
        weights[r] = merge_weights(sink, total_reference[r]);
        total_sum[r] = merged(total_sum[r], 1.0f, weights[r]);
      }
      inverse[r] = reciprocal(total_sum[r]) * args.value_units;
    }
#pragma unroll
    for (int i = 0; i < kHeadDim / 2; ++i) {
      const int r = i / 2 % 2;
      values[i] = merged(values[i], 0.0f, weights[r]) * inverse[r];
    }
    if (is_turned(args.value_format)) turn_back();
    if (args.out_f32 != nullptr) write_f32();
    if (args.out != nullptr) write_rounded();
  }

  // As turn_kv_row of the CPU does: a step of 1 is between neighbours of a thread, of 2 and 4 between threads.
  __device__ __forceinline__ void turn_back() {
    const float norm = 1.0f / square_root(float(kHeadDim));
#pragma unroll
    for (int i = 0; i < kHeadDim / 2; i += 2) turn_pair(values[i], values[i + 1]);
#pragma unroll
    for (int step = 1; step < 4; step *= 2) {
#pragma unroll
      for (int i = 0; i < kHeadDim / 2; ++i) {
        const float other = __shfl_xor_sync(~0u, values[i], step);
        values[i] = (t & step) == 0 ? values[i] + other : other - values[i];
      }
    }
#pragma unroll
    for (int step = 1; step < kHeadDim / 8; step *= 2) {
#pragma unroll
      for (int i = 0; i < kHeadDim / 2; ++i)
        if ((i / 4 & step) == 0) turn_pair(values[i], values[i + 4 * step]);
    }
#pragma unroll
    for (int i = 0; i < kHeadDim / 2; ++i) values[i] *= norm;
  }
  __device__ __forceinline__ static void turn_pair(float& a, float& b) {
    const float x = a, y = b;
    a = x + y;
    b = x - y;
  }

  __device__ __forceinline__ void write_f32() const {
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      if (args.group.token_of(row_of(r)) >= tile->tokens) continue;
      float* out = args.out_f32 + out_row(row_of(r)) * kHeadDim + 2 * t;
#pragma unroll
      for (int k = 0; k < kHeadDim / 8; ++k)
        *reinterpret_cast<float2*>(out + 8 * k) =
            make_float2(values[4 * k + 2 * r], values[4 * k + 2 * r + 1]);
    }
  }

  // Through shared memory, where the totals were, so that a row is written in whole pieces. Pairs of neighbours stay together in
  // the order of activations; of each piece of 16 bytes a head has the pairs of kHeadDim / 32 quarters.
  __device__ __forceinline__ void write_rounded() const {
    constexpr int kQuarters = kHeadDim / 32, kPitch = kHeadDim * 2 + 16;
    using Piece = std::conditional_t<kQuarters == 4, uint4, uint2>;
    uint8_t* stage = shared.memory + Layout::kTotals + group_index * 64 * kHeadDim * 4;
    meet_group();
#pragma unroll
    for (int k = 0; k < kHeadDim / 8; ++k) {
      const int dim = 8 * k + 2 * t, piece = int(position_of(dim % 32)) / 8, quarter = dim / 32;
#pragma unroll
      for (int r = 0; r < 2; ++r)
        *reinterpret_cast<uint32_t*>(stage + (warp * 16 + g + 8 * r) * kPitch +
                                     (piece * kQuarters + quarter) * 4) =
            ptx::pack_bf16(values[4 * k + 2 * r], values[4 * k + 2 * r + 1]);
    }
    meet_group();
    for (int i = thread; i < 64 * 16; i += 128) {
      const int row = i / 16, piece = i % 16, tile_row = group_index * 64 + row;
      const uint32_t token = args.group.token_of(tile_row),
                     head = tile->kv_head * args.group.size + args.group.head_of(tile_row);
      if (token >= tile->tokens) continue;
      const uint32_t first = head * kHeadDim + piece / 2 * 4 + piece % 2 * 2;  // of the piece's numbers
      *reinterpret_cast<Piece*>(args.out + activation_place(args.out_tokens, tile->token + token, first)) =
          *reinterpret_cast<const Piece*>(stage + row * kPitch + piece * sizeof(Piece));
    }
    meet_group();
  }

  __device__ __forceinline__ void run() {
    if (group_index == 1) give_turn();
    for (uint32_t number = 0;; ++number) {
      const int slot = int(number & 1);
      ptx::wait_barrier(shared.slot_full(slot), number >> 1 & 1);
      begin(shared.slots() + slot);
      if (tile->tokens == 0) return;
      compute(number);
      finish();
      ptx::arrive(shared.slot_empty(slot));
    }
  }
};

// With tensor maps of 16-bit rows, which one warp fetches.
template <class KeyNumber, class ValueNumber, int kHeadDim>
__global__ void __launch_bounds__(kPrefillThreads, 1)
    prefill_attention(const __grid_constant__ CUtensorMap queries, const __grid_constant__ CUtensorMap keys,
                      const __grid_constant__ CUtensorMap values, const PrefillArgs args) {
#if QUIRE_CUDA_HOPPER
  extern __shared__ uint8_t memory[];
  const uint32_t address = ptx::shared_address(memory), begin = (address + 1023) & ~1023u;
  const PrefillShared<kHeadDim> shared{begin, memory + (begin - address)};
  if (threadIdx.x == 0) shared.init(1);
  __syncthreads();
  if (threadIdx.x / 128 == 2) {
    ptx::shrink_registers<56>();
    if (threadIdx.x / 32 == 8) PrefillFetch<kHeadDim>{&keys, &values, {&queries, args, shared}}.run();
  } else {
    ptx::grow_registers<224>();
    PrefillRows<KeyNumber, ValueNumber, kHeadDim>{args, shared}.run();
  }
#endif
}

// With rows of any format, which four warps convert.
template <class KeyNumber, class ValueNumber, int kHeadDim>
__global__ void __launch_bounds__(kPrefillThreads, 1)
    prefill_converted_attention(const __grid_constant__ CUtensorMap queries, const PrefillArgs args) {
#if QUIRE_CUDA_HOPPER
  extern __shared__ uint8_t memory[];
  const uint32_t address = ptx::shared_address(memory), begin = (address + 1023) & ~1023u;
  const PrefillShared<kHeadDim> shared{begin, memory + (begin - address)};
  if (threadIdx.x == 0) shared.init(kConvertThreads);
  __syncthreads();
  if (threadIdx.x / 128 == 2) {
    ptx::shrink_registers<88>();
    PrefillConvert<kHeadDim>{{&queries, args, shared}}.run();
  } else {
    ptx::grow_registers<208>();
    PrefillRows<KeyNumber, ValueNumber, kHeadDim>{args, shared}.run();
  }
#endif
}

}  // namespace quire::cuda
