#pragma once

#include <cuda_runtime_api.h>

#include "backend/cuda/matmul/products.h"

namespace quire::cuda {

// Up to so many tokens a product that adds to the residual itself is faster; of more, one that stores its rows and this after it. On
// an H200 256 tokens are about equal, and of 2,048 a product of 4096 x 4096 takes 192 us this way instead of 215.
inline constexpr uint32_t kAddingProductTokens = 256;

// What a product with this output would write, from its plain result y [tokens, rows]: the same bits. With many tokens that is
// faster than to add where they are multiplied. Takes part in dependent launches like a product. REQUIRES: y has no gaps between rows.
void output_rows(const Rows& y, const AddToResidual& output, const ProductWorkspace& workspace,
                 cudaStream_t stream);

}  // namespace quire::cuda
