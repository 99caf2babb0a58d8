#include "backend/cuda/gather.h"
#include "backend/cuda/launch.cuh"
#include "backend/cuda/ptx.cuh"

namespace quire::cuda {
namespace {

__global__ void gather(const DrawnToken* drawn, uint32_t count, const SampleOutcome* outcomes,
                       uint32_t* ids) {
  ptx::follow_kernel_before();
  const uint32_t i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < count) ids[drawn[i].token] = outcomes[drawn[i].draw].token;
}

}  // namespace

void gather_drawn(const DrawnToken* drawn, uint32_t count, const SampleOutcome* outcomes, uint32_t* ids,
                  cudaStream_t stream) {
  if (count == 0) return;
  launch(gather, {.blocks = (count + 127) / 128, .threads = 128}, Overlap::with_kernel_before, stream, drawn,
         count, outcomes, ids);
}

}  // namespace quire::cuda
