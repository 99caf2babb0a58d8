#include "backend/cuda/dependent_launch.cuh"
#include "backend/cuda/matmul/epilogue.cuh"
#include "backend/cuda/matmul/output_rows.h"

namespace quire::cuda {
namespace {

constexpr uint32_t kThreads = 256;
constexpr uint32_t kRounds = 4;  // of a thread
constexpr uint32_t kRowsOfBlock = kThreads * kRounds;

__global__ void __launch_bounds__(kThreads)
    add_rows(const Rows y, uint32_t blocks_of_token, const AddToResidual output) {
  ptx::follow_kernel_before();
  const uint32_t token = blockIdx.x / blocks_of_token, lane = threadIdx.x % 32;
  const uint32_t first = blockIdx.x % blocks_of_token * kRowsOfBlock + threadIdx.x;
  const auto rows = uint32_t(y.width);
  const float* from = y.data + token * y.stride;
  float values[kRounds][1];
#pragma unroll
  for (uint32_t i = 0; i < kRounds; ++i) {
    const uint32_t row = first + i * kThreads;
    values[i][0] = row < rows ? from[row] : 0.0f;
  }
#pragma unroll
  for (uint32_t i = 0; i < kRounds; ++i) {
    const uint32_t tile_row = (first + i * kThreads) / kTileRows * kTileRows;
    finish<RowPerLane>(output, {tile_row, rows, token, tile_row < rows, 1.0f}, lane, values[i]);
  }
}

}  // namespace

void output_rows(const Rows& y, const AddToResidual& output, const ProductWorkspace& workspace,
                 cudaStream_t stream) {
  const auto tokens = uint32_t(y.rows);
  if (tokens == 0) return;
  const uint32_t blocks = uint32_t(y.width + kRowsOfBlock - 1) / kRowsOfBlock;
  launch(add_rows, {.blocks = blocks * tokens, .threads = kThreads}, overlap_on(workspace.device()), stream,
         y, blocks, output);
}

}  // namespace quire::cuda
