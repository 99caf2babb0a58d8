#pragma once

#include <cstddef>
#include <cstdint>

#include <cuda_runtime_api.h>

// What benchmarks compare with, and what they read.

namespace quire::cuda {

// Reads all bytes once, as fast as plain loads can. `memory` is aligned to 16.
void read_memory(const void* memory, size_t bytes, cudaStream_t stream);

// bf16 numbers that look random, between -2 and 2.
void fill_with_noise(uint16_t* numbers, size_t count, uint32_t seed, cudaStream_t stream);

}  // namespace quire::cuda
