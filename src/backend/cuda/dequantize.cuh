#pragma once

#include <cstdint>

#include "backend/cuda/ptx.cuh"
#include "backend/cuda/weight_layout.h"

// From the blocks of weight_layout.h to the operands of the tensor cores. A lane 4g + t of a warp reads its codes of
// rows g and g + 8 and gives, for each step of 16 k, the four registers that mma_bf16 and wgmma want.

namespace quire::cuda {

// What a lane multiplies the codes of a row with, twice side by side: weight = code * scale + offset. A code that
// stays in the upper half of its byte is sixteen times itself and takes a sixteenth of the scale (exact).
struct LaneScale {
  uint32_t scale, upper_scale, offset;
};

__device__ __forceinline__ uint32_t twice_low(uint32_t pair) {
  return __byte_perm(pair, 0, 0x1010);
}

__device__ __forceinline__ uint32_t twice_high(uint32_t pair) {
  return __byte_perm(pair, 0, 0x3232);
}

template <WeightFormat kFormat>
__device__ __forceinline__ LaneScale lane_scale(uint32_t scale, uint32_t min) {
  constexpr uint32_t kSixteenth = 0x3d803d80u;
  // -8 and -128 times 2^-133: the scale is stored times 2^73, the offset wanted times 2^-60.
  constexpr uint32_t kMinus8 = 0x80088008u, kMinus128 = 0x80808080u;
  LaneScale s;
  s.scale = scale;
  s.upper_scale = ptx::mul_bf16x2(scale, kSixteenth);
  s.offset = min;
  if constexpr (kFormat == WeightFormat::q4_0) s.offset = ptx::mul_bf16x2(scale, kMinus8);
  if constexpr (kFormat == WeightFormat::q8_0) s.offset = ptx::mul_bf16x2(scale, kMinus128);
  return s;
}

__device__ __forceinline__ void load_four(const uint4& four, uint32_t (&words)[4]) {
  words[0] = four.x;
  words[1] = four.y;
  words[2] = four.z;
  words[3] = four.w;
}

template <WeightFormat kFormat>
struct LaneBlock;

// The codes of a block that a lane holds: q4_0, q4_k.
template <WeightFormat kFormat>
struct HalfByteBlock {
  uint32_t words[2][4];  // [row g or g + 8][step / 2]
  LaneScale scales[2];

  __device__ __forceinline__ void load(const uint8_t* block, uint32_t lane) {
#pragma unroll
    for (int row = 0; row < 2; ++row) {
      load_four(*reinterpret_cast<const uint4*>(block + row * 512 + lane * 16), words[row]);
    }
    uint32_t scale, min = 0;
    if constexpr (kFormat == WeightFormat::q4_k) {
      const uint2 both = *reinterpret_cast<const uint2*>(block + 1024 + lane * 8);
      scale = both.x;
      min = both.y;
    } else {
      scale = *reinterpret_cast<const uint32_t*>(block + 1024 + lane * 4);
    }
    scales[0] = lane_scale<kFormat>(twice_low(scale), twice_low(min));
    scales[1] = lane_scale<kFormat>(twice_high(scale), twice_high(min));
  }

  // `step` is known when this is compiled.
  __device__ __forceinline__ void operand(int step, uint32_t (&a)[4]) {
#pragma unroll
    for (int row = 0; row < 2; ++row) {
      const uint32_t word = words[row][step / 2] >> (step % 2 * 8);
      a[row] = ptx::fma_bf16x2(word & 0x000f000fu, scales[row].scale, scales[row].offset);
      a[row + 2] = ptx::fma_bf16x2(word & 0x00f000f0u, scales[row].upper_scale, scales[row].offset);
    }
  }
};

template <>
struct LaneBlock<WeightFormat::q4_0> : HalfByteBlock<WeightFormat::q4_0> {};
template <>
struct LaneBlock<WeightFormat::q4_k> : HalfByteBlock<WeightFormat::q4_k> {};

// Bytes: half of them at a time, because all would take sixteen registers. Steps are asked for in order.
template <>
struct LaneBlock<WeightFormat::q8_0> {
  const uint8_t* at;
  uint32_t words[2][4];  // [row g or g + 8][step % 4]
  LaneScale scales[2];

  __device__ __forceinline__ void load(const uint8_t* block, uint32_t lane) {
    at = block + lane * 16;
    const uint32_t scale = *reinterpret_cast<const uint32_t*>(block + 2048 + lane * 4);
    scales[0] = lane_scale<WeightFormat::q8_0>(twice_low(scale), 0);
    scales[1] = lane_scale<WeightFormat::q8_0>(twice_high(scale), 0);
  }

  __device__ __forceinline__ void operand(int step, uint32_t (&a)[4]) {
#pragma unroll
    for (int row = 0; row < 2; ++row) {
      if (step % 4 == 0)
        load_four(*reinterpret_cast<const uint4*>(at + row * 1024 + step / 4 * 512), words[row]);
      const uint32_t word = words[row][step % 4];
      a[row] = ptx::fma_bf16x2(__byte_perm(word, 0, 0x4140), scales[row].scale, scales[row].offset);
      a[row + 2] = ptx::fma_bf16x2(__byte_perm(word, 0, 0x4342), scales[row].scale, scales[row].offset);
    }
  }
};

// What a sum is multiplied with at the end.
template <WeightFormat kFormat>
__device__ __forceinline__ float undo_stored_weight(float sum) {
  return kFormat == WeightFormat::bf16 ? sum : __fmul_rn(sum, kUndoStoredWeight);
}

}  // namespace quire::cuda
