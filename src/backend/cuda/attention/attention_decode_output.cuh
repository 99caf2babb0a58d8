#pragma once

#include <cstdint>
#include <type_traits>

#include "backend/cuda/attention/attention_decode_fetch.cuh"
#include "backend/cuda/attention/kv_row_codes.cuh"
#include "backend/cuda/matmul/activation_layout.h"

// What becomes of a unit's sums: the result, where its split is the only one; otherwise partial sums, which the block that comes
// last to its tokens merges in the order of the splits, or another kernel if they are many.

namespace quire::cuda {

template <int kHeadDim>
struct DecodeOutput {
  static constexpr int kPartial = kHeadDim + kPartialExtra;

  const DecodeArgs& args;
  const DecodeUnit& unit;
  const uint32_t kv_head;

  __device__ __forceinline__ uint32_t head_of(uint32_t column) const {
    return kv_head * args.group.size + args.group.head_of(column);
  }

  // Of the split-th of the unit's tokens: values, then reference and sum.
  __device__ __forceinline__ float* partial(uint32_t split, uint32_t column) const {
    const size_t place = unit.first_place + split;
    return args.partials + ((place * args.kv_heads + kv_head) * args.columns + column) * kPartial;
  }

  __device__ __forceinline__ void write(uint32_t column, uint32_t dim, float value) const {
    const uint32_t token = unit.token + args.group.token_of(column), head = head_of(column);
    if (args.out != nullptr) {
      const size_t place = activation_place(args.out_tokens, token, head * kHeadDim + dim);
      *reinterpret_cast<uint16_t*>(args.out + place) = uint16_t(ptx::pack_bf16(value, 0.0f));
    }
    if (args.out_f32 != nullptr) args.out_f32[(size_t(token) * args.heads + head) * kHeadDim + dim] = value;
  }

  // Merges the sink into a total; returns what values are multiplied with at the end.
  __device__ __forceinline__ MergeWeights merge_sink(uint32_t column, float& reference, float& total) const {
    if (args.sinks == nullptr) return {1.0f, 0.0f};
    const MergeWeights weights = merge_weights(args.sinks[head_of(column)] * kLog2E, reference);
    total = merged(total, 1.0f, weights);
    return weights;
  }
};

// A column's splits in one, by a warp: a lane has kHeadDim / 32 dimensions beside each other. kAtOnce: splits whose loads are under
// way together.
template <int kHeadDim, uint32_t kAtOnce>
struct MergedColumn {
  static constexpr int kDims = kHeadDim / 32;
  using Vector = std::conditional_t<kDims == 4, float4, float2>;
  union Piece {
    Vector whole;
    float value[kDims];
  };

  Piece values;

  __device__ __forceinline__ MergedColumn(const DecodeOutput<kHeadDim>& output, uint32_t column,
                                          uint32_t lane) {
    const float* from = output.partial(0, column);
    const size_t step = size_t(output.args.kv_heads) * output.args.columns * DecodeOutput<kHeadDim>::kPartial;
    const uint32_t splits = output.unit.splits;
    float total = 0, reference = -infinity();
#pragma unroll
    for (float& value : values.value) value = 0;
#pragma unroll 1
    for (uint32_t begin = 0; begin < splits; begin += kAtOnce) {
      Piece loaded[kAtOnce];
      float2 ends[kAtOnce];
#pragma unroll
      for (uint32_t i = 0; i < kAtOnce; ++i) {
        if (begin + i >= splits) continue;
        const float* split = from + (begin + i) * step;
        loaded[i].whole = __ldcg(reinterpret_cast<const Vector*>(split) + lane);
        ends[i] = __ldcg(reinterpret_cast<const float2*>(split + kHeadDim));
      }
#pragma unroll
      for (uint32_t i = 0; i < kAtOnce; ++i) {
        if (begin + i >= splits) continue;
        const MergeWeights weights = merge_weights(ends[i].x, reference);
        total = merged(total, ends[i].y, weights);
#pragma unroll
        for (int d = 0; d < kDims; ++d)
          values.value[d] = merged(values.value[d], loaded[i].value[d], weights);
      }
    }
    const MergeWeights weights = output.merge_sink(column, reference, total);
#pragma unroll
    for (float& value : values.value) value = merged(value, 0.0f, weights) * reciprocal(total);
  }
};

// A block of threads has a column of some tokens and one KV head; a thread has a dimension.
template <int kHeadDim>
__global__ void __launch_bounds__(kHeadDim) merge_splits(const DecodeArgs args) {
#if QUIRE_CUDA_HOPPER
  constexpr uint32_t kAtOnce = 16;  // splits whose loads are under way together
  const uint32_t column = blockIdx.x % args.columns, rest = blockIdx.x / args.columns;
  const DecodeUnit unit = args.units[args.merges[rest / args.kv_heads]];
  const DecodeOutput<kHeadDim> output{args, unit, rest % args.kv_heads};
  const float* from = output.partial(0, column);
  const size_t step = size_t(args.kv_heads) * args.columns * DecodeOutput<kHeadDim>::kPartial;
  const uint32_t dim = threadIdx.x;
  ptx::wait_for_kernel_before();  // all do: who waits for this kernel counts on the one before it too
  if (column >= unit.tokens * args.group.size) return;
  float value = 0, total = 0, reference = -infinity();
  for (uint32_t begin = 0; begin < unit.splits; begin += kAtOnce) {
    float loaded[kAtOnce];
    float2 ends[kAtOnce];
#pragma unroll
    for (uint32_t i = 0; i < kAtOnce; ++i) {
      if (begin + i >= unit.splits) continue;
      loaded[i] = __ldcg(from + (begin + i) * step + dim);
      ends[i] = __ldcg(reinterpret_cast<const float2*>(from + (begin + i) * step + kHeadDim));
    }
#pragma unroll
    for (uint32_t i = 0; i < kAtOnce; ++i) {
      if (begin + i >= unit.splits) continue;
      const MergeWeights weights = merge_weights(ends[i].x, reference);
      total = merged(total, ends[i].y, weights);
      value = merged(value, loaded[i], weights);
    }
  }
  const MergeWeights weights = output.merge_sink(column, reference, total);
  value = merged(value, 0.0f, weights) * reciprocal(total);
  if (is_turned(args.value_format)) {
    __shared__ float row[kHeadDim];
    row[dim] = value;
    __syncthreads();
    if (dim < 32) turn(row, kHeadDim);
    __syncthreads();
    value = row[dim];
  }
  output.write(column, dim, value);
#endif
}

}  // namespace quire::cuda
