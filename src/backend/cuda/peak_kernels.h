#pragma once

#include <cstddef>
#include <cstdint>

#include <cuda_runtime_api.h>

// What the device can do at most, for its yardstick.

namespace quire::cuda {

// Reads all of it. Pointers are to device memory; `out` is one number that is never written in practice.
void launch_read(const void* memory, size_t bytes, uint32_t* out, cudaStream_t stream);

// Multiplies bf16 on every multiprocessor, operands in shared memory or registers. Returns the operations that takes.
double launch_products(uint32_t sweeps, float* out, cudaStream_t stream);
// The same with the instructions of Hopper.
double launch_hopper_products(uint32_t sweeps, float* out, cudaStream_t stream);

}  // namespace quire::cuda
