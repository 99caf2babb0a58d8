#pragma once

#include <cstdint>

#include <cuda_runtime_api.h>

#include "backend/cuda/sampling/sample_kernels.h"
#include "backend/tap.h"

namespace quire::cuda {

// ids[drawn.token] = what draw `drawn.draw` of the step before gave. Pointers are to device memory.
void gather_drawn(const DrawnToken* drawn, uint32_t count, const SampleOutcome* outcomes, uint32_t* ids,
                  cudaStream_t stream);

}  // namespace quire::cuda
