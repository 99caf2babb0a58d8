#include "backend/cuda/dependent_launch.cuh"
#include "backend/cuda/matmul/epilogue.cuh"
#include "backend/cuda/matmul/token_scales.h"

namespace quire::cuda {
namespace {

__global__ void __launch_bounds__(128) scale_tokens(const TokenScales scales, uint32_t tokens, float* out) {
  ptx::follow_kernel_before();
  const uint32_t token = blockIdx.x * 4 + threadIdx.x / 32, lane = threadIdx.x % 32;
  if (token >= tokens) return;
  const float scale = token_scale(scales, token, lane);
  if (lane == 0) out[token] = scale;
}

}  // namespace

void write_token_scales(const TokenScales& scales, uint32_t tokens, float* out, const DeviceTraits& device,
                        cudaStream_t stream) {
  launch(scale_tokens, {(tokens + 3) / 4, 128}, overlap_on(device), stream, scales, tokens, out);
}

}  // namespace quire::cuda
