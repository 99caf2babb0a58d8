#include "backend/cuda/launch.cuh"
#include "backend/cuda/memory_yardstick.h"

namespace quire::cuda {
namespace {

__global__ void __launch_bounds__(512) read_all(const uint4* memory, size_t count, uint32_t* never) {
  uint32_t all = 0;
  const size_t step = size_t(gridDim.x) * blockDim.x;
  size_t i = blockIdx.x * size_t(blockDim.x) + threadIdx.x;
  for (; i + 3 * step < count; i += 4 * step) {
    uint4 four[4];
#pragma unroll
    for (int k = 0; k < 4; ++k) four[k] = __ldcs(memory + i + k * step);
#pragma unroll
    for (int k = 0; k < 4; ++k) all |= four[k].x ^ four[k].y ^ four[k].z ^ four[k].w;
  }
  for (; i < count; i += step) all |= memory[i].x;
  if (never != nullptr) *never = all;  // so that nothing is left out
}

__global__ void noise(uint16_t* numbers, size_t count, uint32_t seed) {
  for (size_t i = blockIdx.x * size_t(blockDim.x) + threadIdx.x; i < count;
       i += size_t(gridDim.x) * blockDim.x) {
    uint64_t x = (i + 1) * 0x9E3779B97F4A7C15ull + seed * 0xBF58476D1CE4E5B9ull;
    x = (x ^ x >> 30) * 0xBF58476D1CE4E5B9ull;
    x = (x ^ x >> 27) * 0x94D049BB133111EBull;
    const float value = float(uint32_t(x >> 40)) * 0x1p-22f - 2.0f;
    numbers[i] = uint16_t(__float_as_uint(value) >> 16);
  }
}

}  // namespace

void read_memory(const void* memory, size_t bytes, cudaStream_t stream) {
  launch(read_all, {.blocks = unsigned(8 * multiprocessors()), .threads = 512}, Overlap::none, stream,
         static_cast<const uint4*>(memory), bytes / sizeof(uint4), nullptr);
}

void fill_with_noise(uint16_t* numbers, size_t count, uint32_t seed, cudaStream_t stream) {
  launch(noise, {.blocks = unsigned(8 * multiprocessors()), .threads = 512}, Overlap::none, stream, numbers,
         count, seed);
}

}  // namespace quire::cuda
