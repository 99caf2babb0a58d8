#pragma once

#include <cstdint>

#include "backend/cuda/matmul/products.h"

// The device's oracle, of tests only: products by nothing but a chain of mma.sync over plain rows. It shares no
// dequantization, order or schedule with the kernels that are tested.

namespace quire::cuda {

// bf16 weights [padded rows, k], k padded and in the order of positions; 2 bytes * padded rows * blocks * 128.
void unpack_weight(const PackedWeight& weight, uint16_t* rows, cudaStream_t stream);

// out [tokens, rows]; `rows` as unpack_weight wrote them, activations bf16 [tokens rounded up to 8, k] alike.
void reference_product(const WeightShape& shape, const uint16_t* rows, const uint16_t* activations,
                       uint32_t tokens, float* out, cudaStream_t stream);

// How many of `count` 32-bit words differ.
uint64_t count_differences(const void* a, const void* b, size_t count, cudaStream_t stream);

}  // namespace quire::cuda
