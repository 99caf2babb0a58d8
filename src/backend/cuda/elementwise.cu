#include "backend/cuda/activated.cuh"
#include "backend/cuda/launch.cuh"
#include "backend/cuda/operations.h"
#include "backend/cuda/ptx.cuh"

namespace quire::cuda {
namespace {

constexpr uint32_t kThreads = 256;

// A thread has two neighbours, which stay together in the order of activations.
__global__ void __launch_bounds__(kThreads) activate_pairs(const DeviceActivate params, uint32_t pairs) {
  ptx::follow_kernel_before();
  const uint32_t col = 2 * (blockIdx.x % pairs * kThreads + threadIdx.x), row = blockIdx.x / pairs;
  const uint32_t width = uint32_t(params.gate.width);
  if (col >= round_up(width, kBlockK)) return;
  float value[2] = {0, 0};
#pragma unroll
  for (uint32_t i = 0; i < 2; ++i) {
    if (col + i >= width) continue;
    const float* up = params.up.data == nullptr ? nullptr : params.up.data + row * params.up.stride + col + i;
    value[i] = activated(params.function, params.gate.data[row * params.gate.stride + col + i], up);
    if (params.out_f32.data != nullptr) params.out_f32.data[row * params.out_f32.stride + col + i] = value[i];
  }
  if (params.out.data == nullptr) return;
  *reinterpret_cast<uint32_t*>(params.out.data + activation_place(params.out.tokens, row, col)) =
      ptx::pack_bf16(value[0], value[1]);
}

__global__ void __launch_bounds__(kThreads)
    scale_and_cap(const Rows logits, unsigned blocks, float scale, float soft_cap) {
  ptx::follow_kernel_before();
  const size_t row = blockIdx.x / blocks;
  const size_t col = blockIdx.x % blocks * size_t(kThreads) + threadIdx.x;
  if (col >= logits.width) return;
  float& logit = logits.data[row * logits.stride + col];
  const float scaled = logit * scale;
  logit = soft_cap > 0 ? soft_cap * tanhf(scaled / soft_cap) : scaled;
}

}  // namespace

void activate(const DeviceActivate& params, cudaStream_t stream) {
  CHECK(params.function.kind != Nonlinearity::clamped_swiglu || params.up);
  CHECK(params.out.data == nullptr || params.out.cols == params.gate.width);
  if (params.gate.rows == 0) return;
  const uint32_t blocks = (round_up(uint32_t(params.gate.width), kBlockK) / 2 + kThreads - 1) / kThreads;
  launch(activate_pairs, {.blocks = blocks * uint32_t(params.gate.rows), .threads = kThreads},
         Overlap::with_kernel_before, stream, params, blocks);
}

void scale_logits(const Rows& logits, float scale, float soft_cap, cudaStream_t stream) {
  if (logits.rows == 0 || (scale == 1 && soft_cap == 0)) return;
  const unsigned blocks = unsigned((logits.width + kThreads - 1) / kThreads);
  launch(scale_and_cap, {.blocks = blocks * unsigned(logits.rows), .threads = kThreads},
         Overlap::with_kernel_before, stream, logits, blocks, scale, soft_cap);
}

}  // namespace quire::cuda
