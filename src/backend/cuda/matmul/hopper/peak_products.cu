#include "backend/cuda/launch.cuh"
#include "backend/cuda/matmul/wgmma.cuh"
#include "backend/cuda/peak_kernels.h"

namespace quire::cuda {
namespace {

constexpr unsigned kThreads = 256;  // two warpgroups
constexpr uint32_t kRows = 64, kColumns = 256, kDepth = 64;
constexpr uint32_t kOperandBytes = (2 * kRows + kColumns) * kDepth * 2;
constexpr uint32_t kSharedBytes = kOperandBytes + 1024;

__global__ void __launch_bounds__(kThreads, 1) multiply(uint32_t sweeps, float* out) {
  extern __shared__ __align__(16) uint8_t memory[];
  const uint32_t begin = (ptx::shared_address(memory) + 1023) / 1024 * 1024;
  auto* words = reinterpret_cast<uint32_t*>(memory + (begin - ptx::shared_address(memory)));
  for (uint32_t i = threadIdx.x; i < kOperandBytes / 4; i += kThreads) {
    const uint32_t sign = i & 1 ? 0x80008000u : 0;  // so that sums stay small
    words[i] = 0x3f803f80u | (i * 2654435761u & 0x007f007fu) | sign;
  }
  asm volatile("fence.proxy.async;" ::: "memory");
  __syncthreads();
  const uint64_t a = ptx::swizzled_operand(begin + threadIdx.x / 128 * kRows * kDepth * 2);
  const uint64_t b = ptx::swizzled_operand(begin + 2 * kRows * kDepth * 2);
  float d[kColumns / 2] = {};
  for (uint32_t s = 0; s < sweeps; ++s) {
    ptx::fence_products();
#pragma unroll
    for (int k = 0; k < int(kDepth) / 16; ++k) ptx::Wgmma<kColumns>::shared(d, a + 2 * k, b + 2 * k, 1);
    ptx::commit_products();
    ptx::wait_products<0>();
  }
  float sum = 0;
#pragma unroll
  for (int i = 0; i < int(kColumns) / 2; ++i) sum += d[i];
  if (sum == 12345.678f) *out = sum;
}

}  // namespace

double launch_hopper_products(uint32_t sweeps, float* out, cudaStream_t stream) {
  const unsigned blocks = unsigned(multiprocessors());
  launch(multiply, {blocks, kThreads, kSharedBytes}, Overlap::none, stream, sweeps, out);
  return double(blocks) * 2 * sweeps * (2.0 * kRows * kColumns * kDepth);
}

}  // namespace quire::cuda
