#include "backend/cuda/launch.cuh"
#include "backend/cuda/peak_kernels.h"
#include "backend/cuda/ptx.cuh"

namespace quire::cuda {
namespace {

constexpr unsigned kReadThreads = 256, kReadBlocks = 8;
constexpr unsigned kThreads = 256, kBlocks = 2;  // of a multiprocessor
constexpr int kTiles = 8;                        // sums that a warp has under way

__global__ void __launch_bounds__(kReadThreads) read_all(const uint4* from, size_t count, uint32_t* out) {
  const size_t stride = size_t(gridDim.x) * blockDim.x;
  uint32_t sum = 0;
  size_t i = size_t(blockIdx.x) * blockDim.x + threadIdx.x;
  for (; i + 7 * stride < count; i += 8 * stride) {
    uint4 values[8];
#pragma unroll
    for (int j = 0; j < 8; ++j) values[j] = __ldcs(from + i + j * stride);
#pragma unroll
    for (int j = 0; j < 8; ++j) sum ^= values[j].x ^ values[j].y ^ values[j].z ^ values[j].w;
  }
  if (sum == 0x12345) *out = sum;  // so that the loads are not left out
}

// Numbers between 1 and 2 with any mantissa: zeros would take less power, and be faster.
__device__ __forceinline__ uint32_t two_numbers(uint32_t seed) {
  return 0x3f803f80u | (seed * 2654435761u & 0x007f007fu);
}

__global__ void __launch_bounds__(kThreads) multiply(uint32_t sweeps, float* out) {
  uint32_t a[4], b[kTiles][2];
  for (uint32_t i = 0; i < 4; ++i) a[i] = two_numbers(threadIdx.x + 97 * i);
  for (uint32_t i = 0; i < kTiles; ++i) {
    b[i][0] = two_numbers(threadIdx.x + 31 * i);
    b[i][1] = two_numbers(threadIdx.x + 57 * i) ^ 0x80008000u;  // so that sums stay small
  }
  float d[kTiles][4] = {};
  for (uint32_t s = 0; s < sweeps; ++s) {
#pragma unroll
    for (int i = 0; i < kTiles; ++i) ptx::mma_bf16(d[i], a, b[i][0], b[i][1]);
  }
  float sum = 0;
  for (int i = 0; i < kTiles; ++i) sum += d[i][0] + d[i][1] + d[i][2] + d[i][3];
  if (sum == 12345.678f) *out = sum;
}

}  // namespace

void launch_read(const void* memory, size_t bytes, uint32_t* out, cudaStream_t stream) {
  launch(read_all, {unsigned(multiprocessors()) * kReadBlocks, kReadThreads}, Overlap::none, stream,
         static_cast<const uint4*>(memory), bytes / sizeof(uint4), out);
}

double launch_products(uint32_t sweeps, float* out, cudaStream_t stream) {
  const unsigned blocks = unsigned(multiprocessors()) * kBlocks;
  launch(multiply, {blocks, kThreads}, Overlap::none, stream, sweeps, out);
  return double(blocks) * kThreads / 32 * sweeps * kTiles * (2.0 * 16 * 8 * 16);
}

}  // namespace quire::cuda
