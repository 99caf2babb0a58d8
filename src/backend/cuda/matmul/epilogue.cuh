#pragma once

#include <cstdint>

#include "backend/cuda/matmul/activation_layout.h"
#include "backend/cuda/matmul/product_outputs.h"
#include "backend/cuda/ptx.cuh"

// How products end. The kernels hold the 16 rows of a tile for a token in two ways; an epilogue is written once for
// both and gives the same bits: sums over the rows of a tile are trees over the row's bits, highest first.

namespace quire::cuda {

__device__ __forceinline__ float add_across(float value, uint32_t lanes_apart) {
  return __fadd_rn(value, __shfl_xor_sync(~0u, value, lanes_apart));
}

// One row in each lane: row lane % 16. Two tiles, or two tokens, side by side in a warp.
struct RowPerLane {
  static constexpr int kRows = 1;
  __device__ __forceinline__ static uint32_t row(uint32_t lane, int) { return lane % 16; }
  // What is eight rows further, for a lane with one of the first eight rows.
  __device__ __forceinline__ static float eight_on(const float (&values)[1]) {
    return __shfl_xor_sync(~0u, values[0], 8);
  }
  __device__ __forceinline__ static float sum(const float (&values)[1]) {
    return add_across(add_across(add_across(add_across(values[0], 8), 4), 2), 1);
  }
};

// Two rows in each lane: rows lane / 4 and lane / 4 + 8; lane % 4 are different tokens.
struct TwoRowsPerLane {
  static constexpr int kRows = 2;
  __device__ __forceinline__ static uint32_t row(uint32_t lane, int i) { return lane / 4 + 8 * i; }
  __device__ __forceinline__ static float eight_on(const float (&values)[2]) { return values[1]; }
  __device__ __forceinline__ static float sum(const float (&values)[2]) {
    return add_across(add_across(add_across(__fadd_rn(values[0], values[1]), 16), 8), 4);
  }
};

// Where a lane's numbers belong. All lanes of a warp finish together; those with an invalid token write nothing.
struct Spot {
  uint32_t tile_row;  // first row of the tile of 16
  uint32_t rows;      // of the weight: what is at or above is padding
  uint32_t token;
  bool valid;
  float scale;  // of the token, where the output has one
};

__device__ __forceinline__ uint16_t* activation_at(const NextActivations& next, uint32_t token, uint32_t k) {
  return reinterpret_cast<uint16_t*>(next.data + activation_place(next.tokens, token, k));
}

// The padding of a token's next activations is written beside their first numbers, of which this is number `i`.
__device__ __forceinline__ void store_padding(const NextActivations& next, uint32_t token, uint32_t i) {
  for (uint32_t k = next.cols + i; k < round_up(next.cols, kBlockK); k += next.cols) {
    *activation_at(next, token, k) = 0;
  }
}

// The part that a tile of 16 rows belongs to, and its first row. Parts end with tiles. Written out, because an index would
// bring the parts to memory.
struct FoundPart {
  float* out;
  size_t stride;
  const float* bias;
  uint32_t begin;
};

__device__ __forceinline__ FoundPart part_of(const StoreParts& output, uint32_t tile_row) {
  const RowsPart &first = output.parts[0], &second = output.parts[1], &third = output.parts[2];
  const bool in_first = tile_row < first.rows;
  const bool in_second = !in_first && tile_row - first.rows < second.rows;
  return {in_first    ? first.out
          : in_second ? second.out
                      : third.out,
          in_first    ? first.stride
          : in_second ? second.stride
                      : third.stride,
          in_first    ? first.bias
          : in_second ? second.bias
                      : third.bias,
          in_first    ? 0
          : in_second ? first.rows
                      : first.rows + second.rows};
}

template <class Spread>
__device__ __forceinline__ void finish(const StoreParts& output, const Spot& spot, uint32_t lane,
                                       const float (&y)[Spread::kRows]) {
  const FoundPart part = part_of(output, spot.tile_row);
#pragma unroll
  for (int i = 0; i < Spread::kRows; ++i) {
    const uint32_t row = spot.tile_row + Spread::row(lane, i);
    if (!spot.valid || row >= spot.rows) continue;
    float value = __fmul_rn(y[i], spot.scale);
    if (part.bias != nullptr) value = __fadd_rn(value, part.bias[row - part.begin]);
    part.out[spot.token * part.stride + row - part.begin] = value;
  }
}

template <class Spread>
__device__ __forceinline__ void finish(const AddToResidual& output, const Spot& spot, uint32_t lane,
                                       const float (&y)[Spread::kRows]) {
  float squares[Spread::kRows];
#pragma unroll
  for (int i = 0; i < Spread::kRows; ++i) {
    const uint32_t row = spot.tile_row + Spread::row(lane, i);
    float x = 0;
    if (spot.valid && row < spot.rows) {
      float* at = output.residual + spot.token * output.stride + row;
      const float value = output.bias != nullptr ? __fadd_rn(y[i], output.bias[row]) : y[i];
      x = __fadd_rn(__ldcg(at), __fmul_rn(output.factor, value));
      *at = x;
      *activation_at(output.next, spot.token, row) =
          uint16_t(ptx::pack_bf16(__fmul_rn(x, output.gain[row]), 0.0f));
      store_padding(output.next, spot.token, row);
    }
    squares[i] = __fmul_rn(x, x);
  }
  const float sum = Spread::sum(squares);
  if (spot.valid && Spread::row(lane, 0) == 0 && spot.tile_row < spot.rows) {
    output.squares[size_t(spot.token) * output.square_count + spot.tile_row / 16] = sum;
  }
}

__device__ __forceinline__ float power_of_two(float x) {
  float power;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(power) : "f"(x));
  return power;
}

// x / (1 + e^-steepness)
__device__ __forceinline__ float times_sigmoid(float x, float steepness) {
  const float power = power_of_two(__fmul_rn(steepness, -1.44269504f));
  return __fmul_rn(x, __frcp_rn(__fadd_rn(1.0f, power)));
}

// x times the share of a normal distribution below it, by formula 7.1.26 of Abramowitz and Stegun, to 1.5e-7.
__device__ __forceinline__ float gelu_erf(float x) {
  const float t = __frcp_rn(__fmaf_rn(0.3275911f * 0.70710678f, fabsf(x), 1.0f));
  float p = __fmaf_rn(1.061405429f, t, -1.453152027f);
  p = __fmaf_rn(p, t, 1.421413741f);
  p = __fmaf_rn(p, t, -0.284496736f);
  p = __fmaf_rn(p, t, 0.254829592f);
  const float tail =
      __fmul_rn(0.5f, __fmul_rn(__fmul_rn(p, t), power_of_two(__fmul_rn(x * x, -0.72134752f))));
  return __fmul_rn(x, x < 0 ? tail : __fsub_rn(1.0f, tail));
}

// As backend/cuda's activate, but by the device's own powers: the result becomes a bf16.
template <Nonlinearity kKind>
__device__ __forceinline__ float gated(const Gate& function, float gate, float up) {
  if constexpr (kKind == Nonlinearity::silu) return __fmul_rn(times_sigmoid(gate, gate), up);
  if constexpr (kKind == Nonlinearity::gelu_tanh) {  // (1 + tanh u) / 2 is 1 / (1 + e^-2u)
    const float twice = __fmul_rn(gate, __fmaf_rn(0.0713548163f, gate * gate, 1.5957691216f));
    return __fmul_rn(times_sigmoid(gate, twice), up);
  }
  if constexpr (kKind == Nonlinearity::gelu_erf) return __fmul_rn(gelu_erf(gate), up);
  const float g = fminf(gate, function.limit);
  const float u = fminf(fmaxf(up, -function.limit), function.limit);
  return __fmul_rn(times_sigmoid(g, __fmul_rn(function.slope, g)), __fadd_rn(u, 1.0f));
}

template <Nonlinearity kKind, int kCount>
__device__ __forceinline__ void gate_each(const Gate& function, float (&gates)[kCount],
                                          const float (&ups)[kCount]) {
#pragma unroll
  for (int i = 0; i < kCount; ++i) gates[i] = gated<kKind>(function, gates[i], ups[i]);
}

// gates[i] = function(gates[i]) * ups[i]: several at a time, so that the function is chosen once and their delays overlap.
template <int kCount>
__device__ __forceinline__ void gate_all(const Gate& function, float (&gates)[kCount],
                                         const float (&ups)[kCount]) {
  if (function.kind == Nonlinearity::silu) {
    gate_each<Nonlinearity::silu>(function, gates, ups);
  } else if (function.kind == Nonlinearity::gelu_tanh) {
    gate_each<Nonlinearity::gelu_tanh>(function, gates, ups);
  } else if (function.kind == Nonlinearity::gelu_erf) {
    gate_each<Nonlinearity::gelu_erf>(function, gates, ups);
  } else {
    gate_each<Nonlinearity::clamped_swiglu>(function, gates, ups);
  }
}

template <class Spread>
__device__ __forceinline__ void finish(const GatedUnit& output, const Spot& spot, uint32_t lane,
                                       const float (&y)[Spread::kRows]) {
  const NextActivations& next = output.next;
  const uint32_t pair = spot.tile_row / 2 + Spread::row(lane, 0) % 8;
  const bool exists = pair < next.cols;
  const uint32_t column = gated_column(pair, next.cols);
  float values[Spread::kRows];
#pragma unroll
  for (int i = 0; i < Spread::kRows; ++i) {
    const float* bias = Spread::row(lane, i) < kUpAfterGate ? output.gate_bias : output.up_bias;
    values[i] = __fmul_rn(y[i], spot.scale);
    if (bias != nullptr && exists) values[i] = __fadd_rn(values[i], bias[column]);
  }
  const float ups[1] = {Spread::eight_on(values)};
  if (!spot.valid || !exists || Spread::row(lane, 0) >= kUpAfterGate) return;
  float result[1] = {values[0]};
  gate_all(output.function, result, ups);
  *reinterpret_cast<uint16_t*>(next.data + gated_place(next.tokens, spot.token, pair, next.cols)) =
      uint16_t(ptx::pack_bf16(result[0], 0.0f));
  store_padding(next, spot.token, pair);
}

// A token's scale from 32 sums of every 32nd square, one in each lane: a tree.
__device__ __forceinline__ float scale_of_sums(const TokenScales& scales, float sum) {
#pragma unroll
  for (uint32_t apart = 16; apart > 0; apart /= 2) sum = add_across(sum, apart);
  return __frsqrt_rn(__fadd_rn(__fdiv_rn(sum, float(scales.width)), scales.epsilon));
}

// In every lane of the warp that asks.
__device__ __forceinline__ float token_scale(const TokenScales& scales, uint32_t token, uint32_t lane) {
  const float* squares = scales.squares + size_t(token) * scales.count;
  float sum = 0;
  for (uint32_t i = lane; i < scales.count; i += 32) sum = __fadd_rn(sum, __ldcg(squares + i));
  return scale_of_sums(scales, sum);
}

}  // namespace quire::cuda
