#pragma once

#include <cuda_runtime_api.h>

#include "backend/cuda/matmul/product_outputs.h"
#include "backend/cuda/matmul/product_plan.h"

namespace quire::cuda {

// out[token] = the scale of each token, for kernels in which many blocks need it. Takes part in dependent launches.
void write_token_scales(const TokenScales& scales, uint32_t tokens, float* out, const DeviceTraits& device,
                        cudaStream_t stream);

}  // namespace quire::cuda
