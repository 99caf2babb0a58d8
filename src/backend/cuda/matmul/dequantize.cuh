#pragma once

#include <cstdint>

#include "backend/cuda/matmul/weight_layout.h"
#include "backend/cuda/ptx.cuh"

// From the blocks of weight_layout.h to the operands of the tensor cores. A lane 4g + t of a warp reads its codes of
// rows g and g + 8 and gives, for each step of 16 k, the four registers that mma_bf16 and wgmma want.

namespace quire::cuda {

// What a lane multiplies the codes of a row with, twice side by side: weight = code * scale + offset. A code that
// stays in the upper half of its byte is sixteen times itself (Q6_K: two bits up, four times) and takes a sixteenth (a
// quarter) of the scale, which is exact.
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
  constexpr uint32_t kUpper = kFormat == WeightFormat::q6_k ? 0x3e803e80u : 0x3d803d80u;
  // -8, -32 and -128 times 2^-133: the scale is stored times 2^73, the offset wanted times 2^-60.
  constexpr uint32_t kMinus8 = 0x80088008u, kMinus32 = 0x80208020u, kMinus128 = 0x80808080u;
  LaneScale s;
  s.scale = scale;
  s.upper_scale = ptx::mul_bf16x2(scale, kUpper);
  s.offset = min;
  if constexpr (kFormat == WeightFormat::q6_k) s.offset = ptx::mul_bf16x2(scale, kMinus32);
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

// Four bits of each code as in the formats of half bytes, and two more of sixteen codes in a word (quarter_bit). The
// first four steps have one scale, the others another: half of a block at a time, in order.
template <>
struct LaneBlock<WeightFormat::q6_k> {
  const uint8_t* at;
  uint32_t lane_;
  uint32_t words[2][2];  // [row g or g + 8][step / 2 % 2]
  uint32_t quarters[2];  // [row]
  LaneScale scales[2];

  __device__ __forceinline__ void load(const uint8_t* block, uint32_t lane) {
    at = block;
    lane_ = lane;
  }

  __device__ __forceinline__ void load_half(int half) {
    const uint8_t* from = at + half * 256 + lane_ * 8;
#pragma unroll
    for (int row = 0; row < 2; ++row) {
      const uint2 two = *reinterpret_cast<const uint2*>(from + row * 512);
      words[row][0] = two.x;
      words[row][1] = two.y;
    }
    const uint2 both = *reinterpret_cast<const uint2*>(from + 1024);
    quarters[0] = both.x;
    quarters[1] = both.y;
    const uint32_t scale = *reinterpret_cast<const uint32_t*>(at + 1536 + half * 128 + lane_ * 4);
    scales[0] = lane_scale<WeightFormat::q6_k>(twice_low(scale), 0);
    scales[1] = lane_scale<WeightFormat::q6_k>(twice_high(scale), 0);
  }

  __device__ __forceinline__ void operand(int step, uint32_t (&a)[4]) {
    if (step % 4 == 0) load_half(step / 4);
#pragma unroll
    for (int row = 0; row < 2; ++row) {
      if (step % 4 == 2) quarters[row] = __funnelshift_l(quarters[row], quarters[row], 4);
      const uint32_t others = quarters[row] >> (step % 2 * 8);
      const uint32_t word = words[row][step / 2 % 2] >> (step % 2 * 8);
      a[row] = ptx::fma_bf16x2((word & 0x000f000fu) | (others & 0x00300030u), scales[row].scale,
                               scales[row].offset);
      a[row + 2] = ptx::fma_bf16x2((word & 0x00f000f0u) | (others & 0x000c000cu), scales[row].upper_scale,
                                   scales[row].offset);
    }
  }
};

// Codes that are floats themselves: moved to the place of a bf16's bits (mxfp4_bit), then times the scale.
template <>
struct LaneBlock<WeightFormat::mxfp4> {
  uint32_t words[2][4];  // [row g or g + 8][step / 2]
  uint32_t scales[2];

  __device__ __forceinline__ void load(const uint8_t* block, uint32_t lane) {
#pragma unroll
    for (int row = 0; row < 2; ++row) {
      load_four(*reinterpret_cast<const uint4*>(block + row * 512 + lane * 16), words[row]);
    }
    const uint32_t scale = *reinterpret_cast<const uint32_t*>(block + 1024 + lane * 4);
    scales[0] = twice_low(scale);
    scales[1] = twice_high(scale);
  }

  __device__ __forceinline__ void operand(int step, uint32_t (&a)[4]) {
    constexpr uint32_t kCode = 0x81c081c0u;
#pragma unroll
    for (int row = 0; row < 2; ++row) {
      const uint32_t word = words[row][step / 2];
      uint32_t first, second;
      if (step % 2 == 0) {
        first = word & kCode;
        second = __funnelshift_r(word, word, 4) & kCode;
      } else {
        first = word << 6 & kCode;
        second = (word << 2 & 0x80c080c0u) | (word >> 6 & 0x01000100u);
      }
      a[row] = ptx::mul_bf16x2(first, scales[row]);
      a[row + 2] = ptx::mul_bf16x2(second, scales[row]);
    }
  }
};

// What a sum is multiplied with at the end.
template <WeightFormat kFormat>
__device__ __forceinline__ float undo_stored_weight(float sum) {
  return kFormat == WeightFormat::bf16 ? sum : __fmul_rn(sum, kUndoStoredWeight);
}

}  // namespace quire::cuda
