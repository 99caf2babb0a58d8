#include "backend/cuda/launch.cuh"
#include "cuda_noise.h"

namespace quire::cuda {
namespace {

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

void fill_with_noise(uint16_t* numbers, size_t count, uint32_t seed, cudaStream_t stream) {
  launch(noise, {.blocks = unsigned(8 * multiprocessors()), .threads = 512}, Overlap::none, stream, numbers,
         count, seed);
}

}  // namespace quire::cuda
