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

// The same of widths in whole blocks, four neighbours in each lane: a warp has a block of a token, and what it reads and writes is
// side by side.
constexpr uint32_t kWarpBlocks = 2;
constexpr uint32_t kBlocksOfBlock = kThreads / 32 * kWarpBlocks;

struct FourRows {
  float4 y, residual, gain, bias;
};

__device__ __forceinline__ FourRows load_four(const Rows& y, const AddToResidual& output, uint32_t token,
                                              uint32_t row) {
  const auto four = [](const float* at) { return *reinterpret_cast<const float4*>(at); };
  FourRows rows;
  rows.y = four(y.data + token * y.stride + row);
  rows.residual = __ldcg(reinterpret_cast<const float4*>(output.residual + token * output.stride + row));
  rows.gain = four(output.gain + row);
  rows.bias = output.bias != nullptr ? four(output.bias + row) : make_float4(-0.0f, -0.0f, -0.0f, -0.0f);
  return rows;
}

__device__ __forceinline__ void finish_four(const AddToResidual& output, const FourRows& rows, uint32_t token,
                                            uint32_t row) {
  const auto add = [&](float residual, float y, float bias) {
    return __fadd_rn(residual, __fmul_rn(output.factor, __fadd_rn(y, bias)));
  };
  const float4 x = {add(rows.residual.x, rows.y.x, rows.bias.x), add(rows.residual.y, rows.y.y, rows.bias.y),
                    add(rows.residual.z, rows.y.z, rows.bias.z), add(rows.residual.w, rows.y.w, rows.bias.w)};
  *reinterpret_cast<float4*>(output.residual + token * output.stride + row) = x;
  uint8_t* to = output.next.data;
  *reinterpret_cast<uint32_t*>(to + activation_place(output.next.tokens, token, row)) =
      ptx::pack_bf16(__fmul_rn(x.x, rows.gain.x), __fmul_rn(x.y, rows.gain.y));
  *reinterpret_cast<uint32_t*>(to + activation_place(output.next.tokens, token, row + 2)) =
      ptx::pack_bf16(__fmul_rn(x.z, rows.gain.z), __fmul_rn(x.w, rows.gain.w));
  // The tree of RowPerLane::sum.
  const auto square = [](float value) { return add_across(add_across(__fmul_rn(value, value), 2), 1); };
  const float sum = __fadd_rn(__fadd_rn(square(x.x), square(x.z)), __fadd_rn(square(x.y), square(x.w)));
  if (row % kTileRows == 0) {
    output.squares[size_t(token) * output.square_count + row / kTileRows] = sum;
  }
}

__global__ void __launch_bounds__(kThreads)
    add_blocks(const Rows y, uint32_t blocks_of_token, uint32_t blocks, const AddToResidual output) {
  ptx::follow_kernel_before();
  const uint32_t lane = threadIdx.x % 32;
  const uint32_t first = blockIdx.x * kBlocksOfBlock + threadIdx.x / 32 * kWarpBlocks;
  FourRows rows[kWarpBlocks];
#pragma unroll
  for (uint32_t i = 0; i < kWarpBlocks; ++i) {
    const uint32_t block = min(first + i, blocks - 1);
    rows[i] = load_four(y, output, block / blocks_of_token, block % blocks_of_token * kBlockK + 4 * lane);
  }
#pragma unroll
  for (uint32_t i = 0; i < kWarpBlocks; ++i) {
    const uint32_t block = first + i;
    if (block >= blocks) return;
    finish_four(output, rows[i], block / blocks_of_token, block % blocks_of_token * kBlockK + 4 * lane);
  }
}

bool in_fours(const void* data, size_t stride) {
  return reinterpret_cast<uintptr_t>(data) % 16 == 0 && stride % 4 == 0;
}

}  // namespace

void output_rows(const Rows& y, const AddToResidual& output, const ProductWorkspace& workspace,
                 cudaStream_t stream) {
  const auto tokens = uint32_t(y.rows);
  if (tokens == 0) return;
  if (y.width % kBlockK == 0 && in_fours(y.data, y.stride) && in_fours(output.residual, output.stride) &&
      in_fours(output.gain, 0) && in_fours(output.bias, 0)) {
    const auto of_token = uint32_t(y.width / kBlockK);
    launch(add_blocks,
           {.blocks = (of_token * tokens + kBlocksOfBlock - 1) / kBlocksOfBlock, .threads = kThreads},
           overlap_on(workspace.device()), stream, y, of_token, of_token * tokens, output);
    return;
  }
  const uint32_t blocks = uint32_t(y.width + kRowsOfBlock - 1) / kRowsOfBlock;
  launch(add_rows, {.blocks = blocks * tokens, .threads = kThreads}, overlap_on(workspace.device()), stream,
         y, blocks, output);
}

}  // namespace quire::cuda
