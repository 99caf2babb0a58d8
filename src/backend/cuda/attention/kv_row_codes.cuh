#pragma once

#include <cstddef>
#include <cstdint>

#include <cuda_fp16.h>

#include "backend/cuda/device_math.h"
#include "backend/cuda/ptx.cuh"
#include "kv/layout/kv_layout.h"

// Rows of a page as codes, written by a warp: the CPU's operations in the CPU's order (cpu/kv_rows.cc), so its bytes.
// `values` are in shared memory.

namespace quire::cuda {

__device__ __forceinline__ void write_half(float value, std::byte* at) {
  const uint16_t bits = isnan(value) ? 0x7e00 : __half_as_ushort(__float2half_rn(value));
  at[0] = std::byte(bits & 255);
  at[1] = std::byte(bits >> 8);
}

// The least f16 that is not below a number that is not negative.
__device__ __forceinline__ float half_above(float value) {
  if (isnan(value)) return value;
  uint16_t bits = __half_as_ushort(__float2half_rn(value));
  if (__half2float(__ushort_as_half(bits)) < value) ++bits;
  return __half2float(__ushort_as_half(bits));
}

// The largest magnitude; NaN if a number is not finite. All lanes have it.
__device__ __forceinline__ float peak_of(const float* values, uint32_t count) {
  float peak = 0;
  bool finite = true;
  for (uint32_t i = threadIdx.x % 32; i < count; i += 32) {
    finite = finite && isfinite(values[i]);
    peak = fmaxf(peak, fabsf(values[i]));
  }
#pragma unroll
  for (int width = 16; width > 0; width /= 2) peak = fmaxf(peak, __shfl_xor_sync(~0u, peak, width));
  return __all_sync(~0u, finite) ? peak : float_of(0x7fc00000u);
}

__device__ __forceinline__ void store_int8(const float* values, uint32_t count, std::byte* row) {
  const float scale = half_above(peak_of(values, count) / 127.0f);
  for (uint32_t i = threadIdx.x % 32; i < count; i += 32) {
    const float code = scale > 0 ? rintf(values[i] / scale) : 0.0f;
    row[i] = std::byte(int8_t(fminf(fmaxf(code, -127.0f), 127.0f)));
  }
  if (threadIdx.x % 32 == 0) write_half(scale, row + count);
}

// The nearest e4m3, ties to even. REQUIRES: at most 448.
__device__ __forceinline__ uint32_t to_e4m3(float magnitude) {
  if (magnitude < 0x1p-6f) return uint32_t(rintf(magnitude * 0x1p9f));
  int exponent = 0;
  const float fraction = frexpf(magnitude, &exponent);
  return uint32_t((exponent + 6) * 8 + int(rintf((fraction * 2 - 1) * 8)));
}

__device__ __forceinline__ void store_fp8(const float* values, uint32_t count, std::byte* row) {
  const float scale = half_above(peak_of(values, count) / 448.0f);
  for (uint32_t i = threadIdx.x % 32; i < count; i += 32) {
    const float magnitude = scale > 0 ? fminf(fabsf(values[i]) / scale, 448.0f) : 0.0f;
    row[i] = std::byte(uint8_t(to_e4m3(magnitude) | (signbit(values[i]) ? 0x80u : 0u)));
  }
  if (threadIdx.x % 32 == 0) write_half(scale, row + count);
}

// A lane has a value of each group.
__device__ __forceinline__ void store_q4(const float* values, uint32_t count, std::byte* row) {
  static_assert(kKvGroup == 32);
  const uint32_t lane = threadIdx.x % 32;
  std::byte* scales = row + count / 2;
  for (uint32_t begin = 0; begin < count; begin += 32, scales += 4) {
    const uint32_t size = min(32u, count - begin), half = size / 2;
    const bool finite = !isnan(peak_of(values + begin, size));
    const float value = values[begin + min(lane, size - 1)];
    float low = value, high = value;
#pragma unroll
    for (int width = 16; width > 0; width /= 2) {
      low = fminf(low, __shfl_xor_sync(~0u, low, width));
      high = fmaxf(high, __shfl_xor_sync(~0u, high, width));
    }
    // The least is rounded first: the scale covers what it leaves.
    const float nan = float_of(0x7fc00000u);
    const float least = finite ? __half2float(__float2half_rn(low)) : nan;
    const float scale = finite ? half_above(fmaxf(0.0f, high - least) / 15.0f) : nan;
    const float steps = scale > 0 ? rintf((value - least) / scale) : 0.0f;
    const uint32_t code = uint32_t(fminf(fmaxf(steps, 0.0f), 15.0f));
    const uint32_t upper = __shfl_sync(~0u, code, (lane + half) % 32);
    if (lane < half) row[begin / 2 + lane] = std::byte(uint8_t(code | upper << 4));
    if (lane == 0) {
      write_half(scale, scales);
      write_half(least, scales + 2);
    }
  }
}

// Multiplies with the Hadamard matrix of the largest power of two that divides the row's size, block by block.
__device__ __forceinline__ void turn(float* values, uint32_t count) {
  const uint32_t block = count & (~count + 1);
  const float norm = 1.0f / square_root(float(block));
  for (uint32_t step = 1; step < block; step *= 2) {
    __syncwarp();
    for (uint32_t i = threadIdx.x % 32; i < count / 2; i += 32) {
      const uint32_t k = i / step * 2 * step + i % step;
      const float a = values[k], b = values[k + step];
      values[k] = a + b;
      values[k + step] = a - b;
    }
  }
  __syncwarp();
  for (uint32_t i = threadIdx.x % 32; i < count; i += 32) values[i] *= norm;
  __syncwarp();
}

__device__ __forceinline__ void store_floats(KvFormat format, const float* values, uint32_t count,
                                             std::byte* row) {
  for (uint32_t i = threadIdx.x % 32; i < count; i += 32) {
    if (format == KvFormat::f32) reinterpret_cast<float*>(row)[i] = values[i];
    if (format == KvFormat::bf16)
      reinterpret_cast<uint16_t*>(row)[i] = uint16_t(ptx::pack_bf16(values[i], 0.0f));
    if (format == KvFormat::f16)
      reinterpret_cast<uint16_t*>(row)[i] = __half_as_ushort(__float2half_rn(values[i]));
  }
}

// May turn `values`.
__device__ __forceinline__ void store_kv_row(KvFormat format, float* values, uint32_t count, std::byte* row) {
  if (is_float(format)) return store_floats(format, values, count, row);
  if (format == KvFormat::int8) return store_int8(values, count, row);
  if (format == KvFormat::fp8) return store_fp8(values, count, row);
  if (is_turned(format)) turn(values, count);
  store_q4(values, count, row);
}

}  // namespace quire::cuda
