#pragma once

#include <cuda_runtime_api.h>

namespace quire::cuda {

// A mixture of 128 experts, 8 of them used: microseconds of a layer, and the share of `bandwidth` (bytes a second) with
// which the chosen experts' weights are read.
void bench_experts(double bandwidth, cudaStream_t stream);

}  // namespace quire::cuda
