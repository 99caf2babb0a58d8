#pragma once

#include <cstdint>

#include <cuda.h>

#include "backend/cuda/ptx.cuh"

// Instructions of sm_90 and later: barriers that count bytes, bulk copies, dependent launches. Elsewhere they
// compile to a trap, so that a kernel for one architecture does not stand in the way of building for all; a kernel
// says so itself with QUIRE_CUDA_HOPPER around its body.

#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
#define QUIRE_CUDA_SM90(...) asm volatile(__VA_ARGS__)
#else
#define QUIRE_CUDA_SM90(...) __trap()
#endif
// wgmma and setmaxnreg are of sm_90a alone.
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
#define QUIRE_CUDA_HOPPER 1
#define QUIRE_CUDA_SM90A(...) asm volatile(__VA_ARGS__)
#else
#define QUIRE_CUDA_HOPPER 0
#define QUIRE_CUDA_SM90A(...) __trap()
#endif

namespace quire::cuda::ptx {

// A barrier in shared memory (8 bytes, aligned). Its phase ends when all expected arrivals came and all expected
// bytes were copied; the first phase has parity 0, the next 1, and so on in turn.
__device__ __forceinline__ void init_barrier(uint32_t barrier, uint32_t arrivals) {
  QUIRE_CUDA_SM90("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(barrier), "r"(arrivals) : "memory");
}

// After init_barrier, before anybody else or a copy uses the barriers.
__device__ __forceinline__ void publish_barriers() {
  QUIRE_CUDA_SM90("fence.mbarrier_init.release.cluster;" ::: "memory");
  QUIRE_CUDA_SM90("fence.proxy.async;" ::: "memory");
}

__device__ __forceinline__ void arrive(uint32_t barrier) {
  QUIRE_CUDA_SM90("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(barrier) : "memory");
}

// Arrives, and says how many bytes copies will bring in this phase.
__device__ __forceinline__ void arrive_expecting(uint32_t barrier, uint32_t bytes) {
  QUIRE_CUDA_SM90("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(barrier), "r"(bytes)
                  : "memory");
}

// Until the phase with this parity has ended.
__device__ __forceinline__ void wait_barrier(uint32_t barrier, uint32_t parity) {
  QUIRE_CUDA_SM90(
      "{\n"
      ".reg .pred done;\n"
      "again_%=: mbarrier.try_wait.parity.shared::cta.b64 done, [%0], %1;\n"
      "@!done bra again_%=;\n"
      "}" ::"r"(barrier),
      "r"(parity)
      : "memory");
}

// One lane of the warp, always the same; cheaper than lane == 0, which the compiler turns into a loop.
__device__ __forceinline__ bool elect() {
  uint32_t elected = 0;
  QUIRE_CUDA_SM90(
      "{\n"
      ".reg .pred p;\n"
      "elect.sync _|p, 0xffffffff;\n"
      "selp.u32 %0, 1, 0, p;\n"
      "}"
      : "=r"(elected));
  return elected != 0;
}

// Copies contiguous bytes to shared memory; `barrier` counts them. All of it in multiples of 16.
__device__ __forceinline__ void copy_bulk(uint32_t shared, const void* global, uint32_t bytes,
                                          uint32_t barrier) {
  QUIRE_CUDA_SM90(
      "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(shared),
      "l"(global), "r"(bytes), "r"(barrier)
      : "memory");
}

// Copies the box of a tensor map that begins at these coordinates, innermost first; what lies outside is zero and
// counts as bytes too. The map is a __grid_constant__ parameter or in global memory.
__device__ __forceinline__ void copy_box(uint32_t shared, const CUtensorMap* map, int x, int y,
                                         uint32_t barrier) {
  QUIRE_CUDA_SM90(
      "cp.async.bulk.tensor.2d.shared::cluster.global.tile.mbarrier::complete_tx::bytes [%0], [%1, {%2, "
      "%3}], "
      "[%4];" ::"r"(shared),
      "l"(map), "r"(x), "r"(y), "r"(barrier)
      : "memory");
}

__device__ __forceinline__ void copy_box(uint32_t shared, const CUtensorMap* map, int x, int y, int z,
                                         uint32_t barrier) {
  QUIRE_CUDA_SM90(
      "cp.async.bulk.tensor.3d.shared::cluster.global.tile.mbarrier::complete_tx::bytes [%0], [%1, {%2, %3, "
      "%4}], "
      "[%5];" ::"r"(shared),
      "l"(map), "r"(x), "r"(y), "r"(z), "r"(barrier)
      : "memory");
}

__device__ __forceinline__ void copy_box(uint32_t shared, const CUtensorMap* map, int x, int y, int z, int w,
                                         uint32_t barrier) {
  QUIRE_CUDA_SM90(
      "cp.async.bulk.tensor.4d.shared::cluster.global.tile.mbarrier::complete_tx::bytes [%0], [%1, {%2, %3, "
      "%4, "
      "%5}], [%6];" ::"r"(shared),
      "l"(map), "r"(x), "r"(y), "r"(z), "r"(w), "r"(barrier)
      : "memory");
}

__device__ __forceinline__ void prefetch_map(const CUtensorMap* map) {
  QUIRE_CUDA_SM90("prefetch.tensormap [%0];" ::"l"(map) : "memory");
}

// What threads wrote to shared memory becomes visible to copies and wgmma that follow.
__device__ __forceinline__ void publish_to_copies() {
  QUIRE_CUDA_SM90("fence.proxy.async.shared::cta;" ::: "memory");
}

// Copies contiguous bytes from shared memory, in multiples of 16, without waiting. A thread's copies since the last commit
// are a group.
__device__ __forceinline__ void copy_bulk_out(void* global, uint32_t shared, uint32_t bytes) {
  QUIRE_CUDA_SM90("cp.async.bulk.global.shared::cta.bulk_group [%0], [%1], %2;" ::"l"(global), "r"(shared),
                  "r"(bytes)
                  : "memory");
  QUIRE_CUDA_SM90("cp.async.bulk.commit_group;" ::: "memory");
}

// Until this thread's groups have read shared memory, and until they have written as well.
__device__ __forceinline__ void wait_bulk_read() {
  QUIRE_CUDA_SM90("cp.async.bulk.wait_group.read 0;" ::: "memory");
}

__device__ __forceinline__ void wait_bulk_written() {
  QUIRE_CUDA_SM90("cp.async.bulk.wait_group 0;" ::: "memory");
}

// Four matrices of 8 columns of 16 bytes: lane 4g + t has numbers (g, 2t) and (g, 2t+1) of each, and lanes 8i to 8i+7 give
// the addresses of matrix i's columns.
__device__ __forceinline__ void store_matrices_transposed(uint32_t shared, const uint32_t (&r)[4]) {
  QUIRE_CUDA_SM90("stmatrix.sync.aligned.m8n8.x4.trans.shared.b16 [%0], {%1,%2,%3,%4};" ::"r"(shared),
                  "r"(r[0]), "r"(r[1]), "r"(r[2]), "r"(r[3])
                  : "memory");
}

// With programmatic dependent launch: let the next kernel start, and wait until the one before has ended and its
// writes can be seen. Launched without it, both do nothing.
__device__ __forceinline__ void launch_dependents() {
  QUIRE_CUDA_SM90("griddepcontrol.launch_dependents;" ::: "memory");
}

__device__ __forceinline__ void wait_for_kernel_before() {
  QUIRE_CUDA_SM90("griddepcontrol.wait;" ::: "memory");
}

// Moves registers between the warpgroups of a block: producers give, consumers take. Multiples of 8.
template <int kRegisters>
__device__ __forceinline__ void shrink_registers() {
  QUIRE_CUDA_SM90A("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(kRegisters));
}

template <int kRegisters>
__device__ __forceinline__ void grow_registers() {
  QUIRE_CUDA_SM90A("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(kRegisters));
}

}  // namespace quire::cuda::ptx
