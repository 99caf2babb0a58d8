#pragma once

#include <cuda_runtime_api.h>

#include "backend/cuda/matmul/products.h"

namespace quire::cuda {

// What a product with this output would write, from its plain result y [tokens, rows]: the same bits. With many tokens that is
// faster than to finish them where they are multiplied, for numbers can be written in a better order. Takes part in dependent
// launches like a product. REQUIRES: y has no gaps between rows.
template <class Output>
void output_rows(const Rows& y, const Output& output, const ProductWorkspace& workspace, cudaStream_t stream);

}  // namespace quire::cuda
