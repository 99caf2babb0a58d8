#pragma once

#include <cuda_runtime_api.h>

#include "backend/cuda/product_outputs.h"

namespace quire::cuda {

// out[token] = the scale of each token, for kernels in which many blocks need it.
void write_token_scales(const TokenScales& scales, uint32_t tokens, float* out, cudaStream_t stream);

}  // namespace quire::cuda
