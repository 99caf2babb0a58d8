#pragma once

#include <cstddef>
#include <cstdint>

#include <cuda_fp16.h>

#include "backend/cuda/attention/kv_row_numbers.h"
#include "backend/cuda/ptx.cuh"

// The numbers of kv_row_numbers.h by a few instructions for several of them. Codes of int8 come out as sixty-fourths, which is
// what bf16's small numbers give for nothing; factors make up for it. Both are powers of two, and change no bit.

namespace quire::cuda {

inline constexpr float kCodeUnits = 64;  // of int8

// Two bytes, in the lower halves of two 16-bit places, to bf16: of int8 with the sign turned over, so from 0 to 255. Such bits
// are the number times 2^-133.
__device__ __forceinline__ uint32_t int8_pair(uint32_t bytes) {
  return ptx::fma_bf16x2(bytes, 0x7f007f00u, 0xc000c000u);  // times 2^127, less 128 / 64
}

// From bits of e4m3 where bf16 has its own, but for the exponent's bias.
__device__ __forceinline__ uint32_t fp8_pair(uint32_t magnitudes, uint32_t signs) {
  return ptx::mul_bf16x2((magnitudes & 0x07f007f0u) | (signs & 0x80008000u), 0x7b807b80u);  // times 2^120
}

__device__ __forceinline__ uint32_t f16x2_bits(__half2 pair) {
  return *reinterpret_cast<const uint32_t*>(&pair);
}
__device__ __forceinline__ __half2 f16x2_of(uint32_t bits) {
  return *reinterpret_cast<const __half2*>(&bits);
}

// Codes of four bits in the lower nibbles of two 16-bit places, under their scales and leasts, to f16.
__device__ __forceinline__ uint32_t q4_pair(uint32_t codes, uint32_t scales, uint32_t leasts) {
  // Behind 0x6400 a code is 1024 more than itself.
  const __half2 numbers = __hsub2(f16x2_of((codes & 0x000f000fu) | 0x64006400u), f16x2_of(0x64006400u));
  return f16x2_bits(__hfma2(numbers, f16x2_of(scales), f16x2_of(leasts)));
}

// The same from the upper nibbles of the lower bytes.
__device__ __forceinline__ uint32_t q4_upper_pair(uint32_t codes, uint32_t scales, uint32_t leasts) {
  const __half2 numbers =  // a sixteenth of 1024 and of sixteen codes, less 64
      __hfma2(f16x2_of((codes & 0x00f000f0u) | 0x64006400u), f16x2_of(0x2c002c00u), f16x2_of(0xd400d400u));
  return f16x2_bits(__hfma2(numbers, f16x2_of(scales), f16x2_of(leasts)));
}

__device__ __forceinline__ float kernel_factor(KvFormat format, const std::byte* row, uint32_t dim) {
  if (!has_factors(format)) return 1.0f;
  const float scale = __half2float(__ushort_as_half(half_at(row + dim)));
  return format == KvFormat::int8 ? scale * kCodeUnits : scale;
}

// Eight bytes at an even address. Without a branch, so that several of them are under way together.
__device__ __forceinline__ uint2 load_eight(const std::byte* at) {
  const auto address = reinterpret_cast<uintptr_t>(at);
  const auto* words = reinterpret_cast<const uint32_t*>(address & ~uintptr_t(3));
  const uint32_t shift = uint32_t(address & 2) * 8, past = uint32_t(address & 2) / 2;
  const uint32_t first = words[0], second = words[1], third = words[1 + past];
  return {__funnelshift_r(first, second, shift), __funnelshift_r(second, third, shift)};
}

__device__ __forceinline__ uint2 int8_four(uint32_t word) {
  const uint32_t codes = word ^ 0x80808080u;
  return {int8_pair(__byte_perm(codes, 0, 0x4140)), int8_pair(__byte_perm(codes, 0, 0x4342))};
}

__device__ __forceinline__ uint2 fp8_four(uint32_t word) {
  const uint32_t low = __byte_perm(word, 0, 0x1404), high = __byte_perm(word, 0, 0x3424);
  return {fp8_pair(low >> 4, low), fp8_pair(high >> 4, high)};
}

__device__ __forceinline__ uint2 q4_four(uint32_t codes, uint32_t scales, uint32_t leasts) {
  return {q4_pair(__byte_perm(codes, 0, 0x4140), scales, leasts),
          q4_pair(__byte_perm(codes, 0, 0x4342), scales, leasts)};
}

__device__ __forceinline__ uint4 joined(uint2 a, uint2 b) {
  return {a.x, a.y, b.x, b.y};
}

// REQUIRES: the piece is of a whole group.
__device__ __forceinline__ uint4 q4_piece(const std::byte* row, uint32_t dim, uint32_t piece) {
  const uint32_t group = piece / 4, shift = piece % 4 / 2 * 4;
  const auto* codes = reinterpret_cast<const uint32_t*>(row + group * 16 + piece % 2 * 8);
  const uint32_t first = codes[0], second = codes[1];
  const uint32_t pair = *reinterpret_cast<const uint32_t*>(row + dim / 2 + 4 * group);
  const uint32_t scales = __byte_perm(pair, 0, 0x1010), leasts = __byte_perm(pair, 0, 0x3232);
  return joined(q4_four(first >> shift, scales, leasts), q4_four(second >> shift, scales, leasts));
}

// Eight numbers of a row, from dimension 8 * piece on. REQUIRES: of q4, a piece of a whole group.
__device__ __forceinline__ uint4 load_whole_piece(KvFormat format, const std::byte* row, uint32_t dim,
                                                  uint32_t piece) {
  if (format == KvFormat::bf16 || format == KvFormat::f16) return reinterpret_cast<const uint4*>(row)[piece];
  if (format == KvFormat::int8 || format == KvFormat::fp8) {
    const uint2 words = load_eight(row + 8 * piece);
    return format == KvFormat::int8 ? joined(int8_four(words.x), int8_four(words.y))
                                    : joined(fp8_four(words.x), fp8_four(words.y));
  }
  if (format == KvFormat::f32) {
    const auto* numbers = reinterpret_cast<const float4*>(row) + 2 * piece;
    const float4 a = numbers[0], b = numbers[1];
    return {ptx::pack_bf16(a.x, a.y), ptx::pack_bf16(a.z, a.w), ptx::pack_bf16(b.x, b.y),
            ptx::pack_bf16(b.z, b.w)};
  }
  return q4_piece(row, dim, piece);
}

// Any piece. REQUIRES: a dim that is a multiple of 8.
__device__ __forceinline__ uint4 load_piece(KvFormat format, const std::byte* row, uint32_t dim,
                                            uint32_t piece) {
  const bool whole = numbers_of(format) != HalfKind::f16 || format == KvFormat::f16;
  if (whole || piece / 4 * 32 + 32 <= dim) return load_whole_piece(format, row, dim, piece);
  uint32_t pairs[4];
#pragma unroll
  for (uint32_t i = 0; i < 4; ++i) {
    const uint32_t d = 8 * piece + 2 * i;
    pairs[i] = q4_number(row, dim, d) | uint32_t(q4_number(row, dim, d + 1)) << 16;
  }
  return {pairs[0], pairs[1], pairs[2], pairs[3]};
}

}  // namespace quire::cuda
