#include "backend/cuda/device_math.h"
#include "backend/cuda/launch.cuh"
#include "backend/cuda/operations.h"
#include "backend/cuda/ptx.cuh"

namespace quire::cuda {
namespace {

constexpr uint32_t kThreads = 256;  // of a row, always: the order of its sums depends on it

// The sum over the block's threads: lanes in a tree, then warps in order.
__device__ __forceinline__ float sum_of_block(float value, float* scratch) {
#pragma unroll
  for (int width = 16; width > 0; width /= 2) value += __shfl_xor_sync(~0u, value, width);
  __syncthreads();  // the sum before has been read
  if (threadIdx.x % 32 == 0) scratch[threadIdx.x / 32] = value;
  __syncthreads();
  float sum = scratch[0];
  for (uint32_t w = 1; w < kThreads / 32; ++w) sum += scratch[w];
  return sum;
}

__device__ __forceinline__ float sum4(float4 v) {
  return (v.x + v.y) + (v.z + v.w);
}
__device__ __forceinline__ float4 square(float4 v) {
  return {v.x * v.x, v.y * v.y, v.z * v.z, v.w * v.w};
}

// norm(x) = (x - mean) * scale * weight + bias.
struct RowNorm {
  DeviceNorm norm;
  float mean = 0, scale = 1;

  // row(i): the row's i-th four numbers.
  template <class Row>
  __device__ __forceinline__ void measure(uint32_t width, const Row& row, float* scratch) {
    if (norm.kind == NormKind::none) return;
    if (norm.kind == NormKind::layer) {
      float sum = 0;
      for (uint32_t i = threadIdx.x; i < width / 4; i += kThreads) sum += sum4(row(i));
      mean = sum_of_block(sum, scratch) / float(width);
    }
    float squares = 0;
    for (uint32_t i = threadIdx.x; i < width / 4; i += kThreads) {
      const float4 v = row(i);
      squares += sum4(square({v.x - mean, v.y - mean, v.z - mean, v.w - mean}));
    }
    scale = 1.0f / square_root(sum_of_block(squares, scratch) / float(width) + norm.epsilon);
  }

  __device__ __forceinline__ float apply(float x, uint32_t col) const {
    if (norm.kind == NormKind::none) return x;
    const float value = norm.weight == nullptr ? (x - mean) * scale : (x - mean) * scale * norm.weight[col];
    return norm.bias == nullptr ? value : value + norm.bias[col];
  }

  __device__ __forceinline__ float4 apply(float4 v, uint32_t col) const {
    return {apply(v.x, col), apply(v.y, col + 1), apply(v.z, col + 2), apply(v.w, col + 3)};
  }
};

// A number of the stream is always one thread's: it reads what it wrote.
__device__ __forceinline__ void add_branch(const DeviceAddNorm& params, uint32_t row, float4* stream,
                                           float* scratch) {
  if (params.branch.data == nullptr) return;
  const uint32_t width = uint32_t(params.stream.width);
  const auto* branch = reinterpret_cast<const float4*>(params.branch.data + row * params.branch.stride);
  RowNorm norm{params.branch_norm};
  norm.measure(
      width, [&](uint32_t i) { return branch[i]; }, scratch);
  float scale = params.branch_scale;
  if (params.branch_gate.data != nullptr)
    scale *= 1.0f / (1.0f + exp_of(-params.branch_gate.data[row * params.branch_gate.stride]));
  for (uint32_t i = threadIdx.x; i < width / 4; i += kThreads) {
    const float4 add = norm.apply(branch[i], 4 * i), s = stream[i];
    stream[i] = {s.x + scale * add.x, s.y + scale * add.y, s.z + scale * add.z, s.w + scale * add.w};
  }
}

__device__ __forceinline__ void write_norm(const DeviceAddNorm& params, uint32_t out_row,
                                           const float4* stream, float* scratch) {
  const uint32_t width = uint32_t(params.stream.width);
  RowNorm norm{params.norm};
  norm.measure(
      width, [&](uint32_t i) { return stream[i]; }, scratch);
  for (uint32_t i = threadIdx.x; i < round_up(width, kBlockK) / 4; i += kThreads) {
    const float4 v = i < width / 4 ? norm.apply(stream[i], 4 * i) : float4{0, 0, 0, 0};
    if (params.out_f32.data != nullptr && i < width / 4)
      reinterpret_cast<float4*>(params.out_f32.data + out_row * params.out_f32.stride)[i] = v;
    if (params.out.data != nullptr) {
      const auto place = [&](uint32_t col) {
        return reinterpret_cast<uint32_t*>(params.out.data +
                                           activation_place(params.out.tokens, out_row, col));
      };
      *place(4 * i) = ptx::pack_bf16(v.x, v.y);
      *place(4 * i + 2) = ptx::pack_bf16(v.z, v.w);
    }
  }
}

__global__ void __launch_bounds__(kThreads) add_and_norm(const DeviceAddNorm params) {
  ptx::follow_kernel_before();
  __shared__ float scratch[kThreads / 32];
  using Order = DeviceAddNorm::Order;
  const uint32_t out_row = blockIdx.x, row = params.rows == nullptr ? out_row : params.rows[out_row];
  auto* stream = reinterpret_cast<float4*>(params.stream.data + row * params.stream.stride);
  if (params.order == Order::add_then_norm) add_branch(params, row, stream, scratch);
  if (params.out.data != nullptr || params.out_f32.data != nullptr)
    write_norm(params, out_row, stream, scratch);
  if (params.order == Order::norm_then_add) add_branch(params, row, stream, scratch);
}

}  // namespace

void add_norm(const DeviceAddNorm& params, cudaStream_t stream) {
  CHECK(params.stream.width % 4 == 0 && params.stream.stride % 4 == 0 && params.branch.stride % 4 == 0);
  CHECK(params.out.data == nullptr || params.out.cols == params.stream.width);
  if (params.row_count == 0) return;
  launch(add_and_norm, {.blocks = params.row_count, .threads = kThreads}, Overlap::with_kernel_before, stream,
         params);
}

}  // namespace quire::cuda
