#pragma once

#include <cstdint>

#include <cuda_runtime_api.h>

#include "backend/cuda/matmul/activation_layout.h"
#include "tensor/dtype.h"

// Kernels that bring numbers into the layouts of products. All pointers are the device's.

namespace quire::cuda {

// Some rows of what a weight is packed from.
struct SourceRows {
  DType dtype;
  const uint8_t* data;
  uint32_t first;
  uint32_t count;
};

// Those bytes of pack_on_host that come from these rows; padding rows are left alone. `order` is null or has shape.rows
// source rows. REQUIRES: device_reads(source.dtype).
void pack_on_device(const WeightShape& shape, const SourceRows& source, const uint32_t* order,
                    uint8_t* destination, cudaStream_t stream);

void write_activations_on_device(const float* rows, size_t stride, uint32_t tokens, uint32_t cols,
                                 uint8_t* destination, cudaStream_t stream);

}  // namespace quire::cuda
