#pragma once

#include <cstdint>

#include "backend/cuda/matmul/ptx_hopper.cuh"

// The products of a Hopper warpgroup: d += a b with a of 64 rows by 16 k, b of 16 k by N columns, bf16, d f32.
// Thread i of 128 holds of d, with warp w = i / 32, g = i % 32 / 4, t = i % 4: rows 16w+g and 16w+g+8, columns
// 8j+2t and 8j+2t+1, as d[4j .. 4j+3] in the order of mma_bf16; `a` from registers has that order too.
//
// A product runs on after the instruction: fence before the first of a group, commit_products after the last,
// wait_products before d is read. A register of `a` must not be written while a product that reads it may still run,
// and no compiler warns of it: keep at least two sets in turn.

namespace quire::cuda::ptx {

__device__ __forceinline__ void fence_products() {
  QUIRE_CUDA_SM90A("wgmma.fence.sync.aligned;" ::: "memory");
}

__device__ __forceinline__ void commit_products() {
  QUIRE_CUDA_SM90A("wgmma.commit_group.sync.aligned;" ::: "memory");
}

// Until at most kPending groups are under way.
template <int kPending>
__device__ __forceinline__ void wait_products() {
  QUIRE_CUDA_SM90A("wgmma.wait_group.sync.aligned %0;" ::"n"(kPending) : "memory");
}

// Where an operand lies in shared memory. Rows of 128 bytes whose 16-byte pieces are swizzled by row % 8
// (aligned to 1024, eight rows every 1024 bytes): a step of 16 k adds 2 to the descriptor.
__device__ __forceinline__ uint64_t swizzled_operand(uint32_t shared) {
  return uint64_t((shared & 0x3ffff) >> 4) | uint64_t(1) << 16 | uint64_t(1024 >> 4) << 32 |
         uint64_t(1) << 62;
}

// Or plain blocks of 8 rows by 16 bytes (128 contiguous bytes): `k_stride` bytes from one to the next along k,
// `row_stride` from one to the next along rows.
__device__ __forceinline__ uint64_t plain_operand(uint32_t shared, uint32_t k_stride, uint32_t row_stride) {
  return uint64_t((shared & 0x3ffff) >> 4) | uint64_t(k_stride >> 4) << 16 | uint64_t(row_stride >> 4) << 32;
}

// Wgmma<N>::shared takes a from shared memory, ::registers from registers; `add` 0 starts d anew. kTransposed: b has
// its columns, not k, contiguous.
template <int kN>
struct Wgmma;

// PTX wants every register by name; these spell them, eight at a time.
#define QUIRE_D0 "%0, %1, %2, %3, %4, %5, %6, %7"
#define QUIRE_D1 "%8, %9, %10, %11, %12, %13, %14, %15"
#define QUIRE_D2 "%16, %17, %18, %19, %20, %21, %22, %23"
#define QUIRE_D3 "%24, %25, %26, %27, %28, %29, %30, %31"
#define QUIRE_D4 "%32, %33, %34, %35, %36, %37, %38, %39"
#define QUIRE_D5 "%40, %41, %42, %43, %44, %45, %46, %47"
#define QUIRE_D6 "%48, %49, %50, %51, %52, %53, %54, %55"
#define QUIRE_D7 "%56, %57, %58, %59, %60, %61, %62, %63"
#define QUIRE_D8 "%64, %65, %66, %67, %68, %69, %70, %71"
#define QUIRE_D9 "%72, %73, %74, %75, %76, %77, %78, %79"
#define QUIRE_D10 "%80, %81, %82, %83, %84, %85, %86, %87"
#define QUIRE_D11 "%88, %89, %90, %91, %92, %93, %94, %95"
#define QUIRE_D12 "%96, %97, %98, %99, %100, %101, %102, %103"
#define QUIRE_D13 "%104, %105, %106, %107, %108, %109, %110, %111"
#define QUIRE_D14 "%112, %113, %114, %115, %116, %117, %118, %119"
#define QUIRE_D15 "%120, %121, %122, %123, %124, %125, %126, %127"
#define QUIRE_OUT8(i)                                                                         \
  "+f"(d[i]), "+f"(d[i + 1]), "+f"(d[i + 2]), "+f"(d[i + 3]), "+f"(d[i + 4]), "+f"(d[i + 5]), \
      "+f"(d[i + 6]), "+f"(d[i + 7])
#define QUIRE_OUT16(i) QUIRE_OUT8(i), QUIRE_OUT8(i + 8)
#define QUIRE_OUT32(i) QUIRE_OUT16(i), QUIRE_OUT16(i + 16)
#define QUIRE_OUT64(i) QUIRE_OUT32(i), QUIRE_OUT32(i + 32)
#define QUIRE_D16 QUIRE_D0 ", " QUIRE_D1
#define QUIRE_D32 QUIRE_D16 ", " QUIRE_D2 ", " QUIRE_D3
#define QUIRE_D64 QUIRE_D32 ", " QUIRE_D4 ", " QUIRE_D5 ", " QUIRE_D6 ", " QUIRE_D7
#define QUIRE_D96 QUIRE_D64 ", " QUIRE_D8 ", " QUIRE_D9 ", " QUIRE_D10 ", " QUIRE_D11
#define QUIRE_D128 QUIRE_D96 ", " QUIRE_D12 ", " QUIRE_D13 ", " QUIRE_D14 ", " QUIRE_D15

// N, the names and operands of d, and the names of the operands that follow them.
#define QUIRE_WGMMA(N, NAMES, I0, I1, I2, I3, I4, I5, I6, ...)                                              \
  template <>                                                                                               \
  struct Wgmma<N> {                                                                                         \
    static constexpr int kRegisters = N / 2;                                                                \
    __device__ __forceinline__ static void shared(float (&d)[N / 2], uint64_t a, uint64_t b, int add) {     \
      QUIRE_CUDA_SM90A("{.reg .pred p; setp.ne.b32 p, " I2 ", 0; wgmma.mma_async.sync.aligned.m64n" #N      \
                       "k16.f32.bf16.bf16 {" NAMES "}, " I0 ", " I1 ", p, 1, 1, 0, 0;}"                     \
                       : __VA_ARGS__                                                                        \
                       : "l"(a), "l"(b), "r"(add));                                                         \
    }                                                                                                       \
    template <int kTransposed = 0>                                                                          \
    __device__ __forceinline__ static void registers(float (&d)[N / 2], const uint32_t (&a)[4], uint64_t b, \
                                                     int add) {                                             \
      QUIRE_CUDA_SM90A("{.reg .pred p; setp.ne.b32 p, " I5 ", 0; wgmma.mma_async.sync.aligned.m64n" #N      \
                       "k16.f32.bf16.bf16 {" NAMES "}, {" I0 ", " I1 ", " I2 ", " I3 "}, " I4               \
                       ", p, 1, 1, " I6 ";}"                                                                \
                       : __VA_ARGS__                                                                        \
                       : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(add), "n"(kTransposed));   \
    }                                                                                                       \
  };

QUIRE_WGMMA(16, QUIRE_D0, "%8", "%9", "%10", "%11", "%12", "%13", "%14", QUIRE_OUT8(0))
QUIRE_WGMMA(32, QUIRE_D16, "%16", "%17", "%18", "%19", "%20", "%21", "%22", QUIRE_OUT16(0))
QUIRE_WGMMA(48, QUIRE_D16 ", " QUIRE_D2, "%24", "%25", "%26", "%27", "%28", "%29", "%30", QUIRE_OUT16(0),
            QUIRE_OUT8(16))
QUIRE_WGMMA(64, QUIRE_D32, "%32", "%33", "%34", "%35", "%36", "%37", "%38", QUIRE_OUT32(0))
QUIRE_WGMMA(96, QUIRE_D32 ", " QUIRE_D4 ", " QUIRE_D5, "%48", "%49", "%50", "%51", "%52", "%53", "%54",
            QUIRE_OUT32(0), QUIRE_OUT16(32))
QUIRE_WGMMA(128, QUIRE_D64, "%64", "%65", "%66", "%67", "%68", "%69", "%70", QUIRE_OUT64(0))
QUIRE_WGMMA(192, QUIRE_D96, "%96", "%97", "%98", "%99", "%100", "%101", "%102", QUIRE_OUT64(0),
            QUIRE_OUT32(64))
QUIRE_WGMMA(256, QUIRE_D128, "%128", "%129", "%130", "%131", "%132", "%133", "%134", QUIRE_OUT64(0),
            QUIRE_OUT64(64))

#undef QUIRE_WGMMA

}  // namespace quire::cuda::ptx
