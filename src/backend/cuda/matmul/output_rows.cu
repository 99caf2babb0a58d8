#include "backend/cuda/launch.cuh"
#include "backend/cuda/matmul/epilogue.cuh"
#include "backend/cuda/matmul/output_rows.h"
#include "backend/cuda/matmul/token_scales.h"
#include "backend/cuda/ptx.cuh"

namespace quire::cuda {
namespace {

constexpr uint32_t kThreads = 256;
constexpr uint32_t kRounds = 4;  // of a thread
constexpr uint32_t kRowsOfBlock = kThreads * kRounds;

template <class Output>
__global__ void __launch_bounds__(kThreads)
    finish_rows(const Rows y, uint32_t blocks_of_token, const float* scales, const Output output) {
  ptx::follow_kernel_before();
  const uint32_t token = blockIdx.x / blocks_of_token, lane = threadIdx.x % 32;
  const uint32_t first = blockIdx.x % blocks_of_token * kRowsOfBlock + threadIdx.x;
  const auto rows = uint32_t(y.width);
  const float* from = y.data + token * y.stride;
  const float scale = scales == nullptr ? 1.0f : scales[token];
  float values[kRounds][1];
#pragma unroll
  for (uint32_t i = 0; i < kRounds; ++i) {
    const uint32_t row = first + i * kThreads;
    values[i][0] = row < rows ? from[row] : 0.0f;
  }
#pragma unroll
  for (uint32_t i = 0; i < kRounds; ++i) {
    const uint32_t tile_row = (first + i * kThreads) / kTileRows * kTileRows;
    finish<RowPerLane>(output, {tile_row, rows, token, tile_row < rows, scale}, lane, values[i]);
  }
}

}  // namespace

template <class Output>
void output_rows(const Rows& y, const Output& output, const ProductWorkspace& workspace,
                 cudaStream_t stream) {
  const auto tokens = uint32_t(y.rows);
  if (tokens == 0) return;
  const float* scales = nullptr;
  if (const TokenScales* wanted = scales_of(output); wanted != nullptr) {
    write_token_scales(*wanted, tokens, workspace.scales(), workspace.device(), stream);
    scales = workspace.scales();
  }
  const uint32_t blocks = uint32_t(y.width + kRowsOfBlock - 1) / kRowsOfBlock;
  launch(finish_rows<Output>, {.blocks = blocks * tokens, .threads = kThreads}, Overlap::with_kernel_before,
         stream, y, blocks, scales, output);
}

template void output_rows(const Rows&, const AddToResidual&, const ProductWorkspace&, cudaStream_t);
template void output_rows(const Rows&, const GatedUnit&, const ProductWorkspace&, cudaStream_t);

}  // namespace quire::cuda
