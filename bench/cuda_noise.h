#pragma once

#include <cstddef>
#include <cstdint>

#include <cuda_runtime_api.h>

namespace quire::cuda {

// bf16 numbers that look random, between -2 and 2.
void fill_with_noise(uint16_t* numbers, size_t count, uint32_t seed, cudaStream_t stream);

}  // namespace quire::cuda
