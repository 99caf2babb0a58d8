#pragma once

#include <cstdint>

#include "backend/cuda/matmul/wgmma.cuh"

// Tensor-core products of both 16-bit formats under one name: kernels are templates over Bf16 and F16.

namespace quire::cuda {

struct Bf16 {
  __device__ __forceinline__ static uint32_t pack(float low, float high) { return ptx::pack_bf16(low, high); }

  __device__ __forceinline__ static void mma(float (&d)[4], const uint32_t (&a)[4], uint32_t b0,
                                             uint32_t b1) {
    ptx::mma_bf16(d, a, b0, b1);
  }

  // d (+)= a b over 16 k, both in shared memory, of 64 rows and 128 columns.
  __device__ __forceinline__ static void wgmma(float (&d)[64], uint64_t a, uint64_t b, int add) {
    ptx::Wgmma<128>::shared(d, a, b, add);
  }

  // The same with a in registers and b with its columns contiguous.
  template <int kN>
  __device__ __forceinline__ static void wgmma_transposed(float (&d)[kN / 2], const uint32_t (&a)[4],
                                                          uint64_t b, int add) {
    ptx::Wgmma<kN>::template registers<1>(d, a, b, add);
  }
};

struct F16 {
  __device__ __forceinline__ static uint32_t pack(float low, float high) {
    uint32_t r;
    asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(r) : "f"(high), "f"(low));
    return r;
  }

  __device__ __forceinline__ static void mma(float (&d)[4], const uint32_t (&a)[4], uint32_t b0,
                                             uint32_t b1) {
    asm volatile(
        "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, "
        "{%0,%1,%2,%3};"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
  }

  __device__ __forceinline__ static void wgmma(float (&d)[64], uint64_t a, uint64_t b, int add) {
    QUIRE_CUDA_SM90A(
        "{.reg .pred p; setp.ne.b32 p, %66, 0; wgmma.mma_async.sync.aligned.m64n128k16.f32.f16.f16 "
        "{" QUIRE_D64 "}, %64, %65, p, 1, 1, 0, 0;}"
        : QUIRE_OUT64(0)
        : "l"(a), "l"(b), "r"(add));
  }

  template <int kN>
  __device__ __forceinline__ static void wgmma_transposed(float (&d)[kN / 2], const uint32_t (&a)[4],
                                                          uint64_t b, int add) {
    static_assert(kN == 64 || kN == 128);
    if constexpr (kN == 128) {
      QUIRE_CUDA_SM90A(
          "{.reg .pred p; setp.ne.b32 p, %69, 0; wgmma.mma_async.sync.aligned.m64n128k16.f32.f16.f16 "
          "{" QUIRE_D64 "}, {%64, %65, %66, %67}, %68, p, 1, 1, 1;}"
          : QUIRE_OUT64(0)
          : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(add));
    } else {
      QUIRE_CUDA_SM90A(
          "{.reg .pred p; setp.ne.b32 p, %37, 0; wgmma.mma_async.sync.aligned.m64n64k16.f32.f16.f16 "
          "{" QUIRE_D32 "}, {%32, %33, %34, %35}, %36, p, 1, 1, 1;}"
          : QUIRE_OUT32(0)
          : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(add));
    }
  }
};

}  // namespace quire::cuda
