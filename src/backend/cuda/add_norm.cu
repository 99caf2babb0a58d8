#include "backend/cuda/device_math.h"
#include "backend/cuda/launch.cuh"
#include "backend/cuda/operations.h"
#include "backend/cuda/ptx.cuh"

namespace quire::cuda {
namespace {

// How a row is worked on. The order of its sums depends on this, and this on its width and its place alone.
template <uint32_t threads, uint32_t step>
struct RowShape {
  static constexpr uint32_t kThreads = threads;
  static constexpr uint32_t kStep = step;  // neighbours that a thread has at a time
};
using WideRow = RowShape<256, 4>;
using NarrowRow = RowShape<32, 4>;     // heads, and parts of rows
using UnalignedRow = RowShape<32, 1>;  // rows that do not come in fours
constexpr uint32_t kNarrow = 512;

// The sum over the block's threads: lanes in a tree, then warps in order.
template <class Shape>
__device__ __forceinline__ float sum_of_block(float value, float* scratch) {
#pragma unroll
  for (int width = 16; width > 0; width /= 2) value += __shfl_xor_sync(~0u, value, width);
  if constexpr (Shape::kThreads == 32) return value;
  __syncthreads();  // the sum before has been read
  if (threadIdx.x % 32 == 0) scratch[threadIdx.x / 32] = value;
  __syncthreads();
  float sum = scratch[0];
  for (uint32_t w = 1; w < Shape::kThreads / 32; ++w) sum += scratch[w];
  return sum;
}

// Neighbours of a row.
template <uint32_t kStep>
struct Numbers {
  float v[kStep];

  __device__ __forceinline__ static Numbers load(const float* row, uint32_t index) {
    Numbers numbers;
    if constexpr (kStep == 4) {
      const float4 four = reinterpret_cast<const float4*>(row)[index];
      numbers.v[0] = four.x;
      numbers.v[1] = four.y;
      numbers.v[2] = four.z;
      numbers.v[3] = four.w;
    } else {
      numbers.v[0] = row[index];
    }
    return numbers;
  }
  __device__ __forceinline__ void store(float* row, uint32_t index) const {
    if constexpr (kStep == 4) {
      reinterpret_cast<float4*>(row)[index] = {v[0], v[1], v[2], v[3]};
    } else {
      row[index] = v[0];
    }
  }
  __device__ __forceinline__ float sum() const {
    if constexpr (kStep == 4) return (v[0] + v[1]) + (v[2] + v[3]);
    return v[0];
  }
  template <class Function>
  __device__ __forceinline__ Numbers each(const Function& function) const {
    Numbers result;
#pragma unroll
    for (uint32_t i = 0; i < kStep; ++i) result.v[i] = function(v[i], i);
    return result;
  }
};

// norm(x) = (x - mean) * scale * weight + bias.
template <class Shape>
struct RowNorm {
  using Some = Numbers<Shape::kStep>;

  DeviceNorm norm;
  float mean = 0, scale = 1;

  __device__ __forceinline__ void measure(uint32_t width, const float* row, float* scratch) {
    if (norm.kind == NormKind::none) return;
    const uint32_t count = width / Shape::kStep;
    if (norm.kind == NormKind::layer) {
      float sum = 0;
      for (uint32_t i = threadIdx.x; i < count; i += Shape::kThreads) sum += Some::load(row, i).sum();
      mean = sum_of_block<Shape>(sum, scratch) / float(width);
    }
    float squares = 0;
    for (uint32_t i = threadIdx.x; i < count; i += Shape::kThreads)
      squares += Some::load(row, i).each([&](float x, uint32_t) { return (x - mean) * (x - mean); }).sum();
    scale = 1.0f / square_root(sum_of_block<Shape>(squares, scratch) / float(width) + norm.epsilon);
  }

  __device__ __forceinline__ float apply(float x, uint32_t col) const {
    if (norm.kind == NormKind::none) return x;
    const float value = norm.weight == nullptr ? (x - mean) * scale : (x - mean) * scale * norm.weight[col];
    return norm.bias == nullptr ? value : value + norm.bias[col];
  }

  __device__ __forceinline__ Some apply(const Some& some, uint32_t col) const {
    return some.each([&](float x, uint32_t i) { return apply(x, col + i); });
  }
};

// A number of the stream is always one thread's: it reads what it wrote.
template <class Shape>
__device__ __forceinline__ void add_branch(const DeviceAddNorm& params, uint32_t row, float* stream,
                                           float* scratch) {
  if (params.branch.data == nullptr) return;
  using Some = Numbers<Shape::kStep>;
  const uint32_t width = uint32_t(params.stream.width);
  const float* branch = params.branch.data + row * params.branch.stride;
  RowNorm<Shape> norm{params.branch_norm};
  norm.measure(width, branch, scratch);
  float scale = params.branch_scale;
  if (params.branch_gate.data != nullptr)
    scale *= 1.0f / (1.0f + exp_of(-params.branch_gate.data[row * params.branch_gate.stride]));
  const float whole = params.stream_scale;
  for (uint32_t i = threadIdx.x; i < width / Shape::kStep; i += Shape::kThreads) {
    const Some add = norm.apply(Some::load(branch, i), Shape::kStep * i);
    Some::load(stream, i)
        .each([&](float s, uint32_t j) {
          const float sum = s + scale * add.v[j];
          return whole == 1 ? sum : sum * whole;
        })
        .store(stream, i);
  }
}

template <class Shape>
__device__ __forceinline__ void write_norm(const DeviceAddNorm& params, uint32_t out_row, const float* stream,
                                           float* scratch) {
  using Some = Numbers<Shape::kStep>;
  const uint32_t width = uint32_t(params.stream.width);
  RowNorm<Shape> norm{params.norm};
  norm.measure(width, stream, scratch);
  for (uint32_t i = threadIdx.x; i < round_up(width, kBlockK) / Shape::kStep; i += Shape::kThreads) {
    const uint32_t col = Shape::kStep * i;
    const bool exists = col < width;
    const Some v = exists ? norm.apply(Some::load(stream, i), col) : Some{};
    if (params.out_f32.data != nullptr && exists)
      v.store(params.out_f32.data + out_row * params.out_f32.stride, i);
    if (params.out.data == nullptr) continue;
    const auto place = [&](uint32_t at) {
      return params.out.data + activation_place(params.out.tokens, out_row, at);
    };
    if constexpr (Shape::kStep == 4) {
      *reinterpret_cast<uint32_t*>(place(col)) = ptx::pack_bf16(v.v[0], v.v[1]);
      *reinterpret_cast<uint32_t*>(place(col + 2)) = ptx::pack_bf16(v.v[2], v.v[3]);
    } else {
      *reinterpret_cast<uint16_t*>(place(col)) = uint16_t(ptx::pack_bf16(v.v[0], 0.0f));
    }
  }
}

template <class Shape>
__global__ void __launch_bounds__(Shape::kThreads) add_and_norm(const DeviceAddNorm params) {
  ptx::follow_kernel_before();
  __shared__ float scratch[Shape::kThreads / 32];
  using Order = DeviceAddNorm::Order;
  const uint32_t out_row = blockIdx.x, row = params.rows == nullptr ? out_row : params.rows[out_row];
  float* stream = params.stream.data + row * params.stream.stride;
  if (params.order == Order::add_then_norm) add_branch<Shape>(params, row, stream, scratch);
  if (params.out.data != nullptr || params.out_f32.data != nullptr)
    write_norm<Shape>(params, out_row, stream, scratch);
  if (params.order == Order::norm_then_add) add_branch<Shape>(params, row, stream, scratch);
}

bool is_in_fours(const Rows& rows) {
  return reinterpret_cast<uintptr_t>(rows.data) % 16 == 0 && rows.stride % 4 == 0;
}

template <class Shape>
void launch_rows(const DeviceAddNorm& params, cudaStream_t stream) {
  launch(add_and_norm<Shape>, {.blocks = params.row_count, .threads = Shape::kThreads},
         Overlap::with_kernel_before, stream, params);
}

}  // namespace

void add_norm(const DeviceAddNorm& params, cudaStream_t stream) {
  CHECK(params.out.data == nullptr || params.out.cols == params.stream.width);
  CHECK(params.stream_scale == 1 || params.branch);
  if (params.row_count == 0) return;
  const bool in_fours = params.stream.width % 4 == 0 && is_in_fours(params.stream) &&
                        is_in_fours(params.branch) && is_in_fours(params.out_f32);
  if (!in_fours) return launch_rows<UnalignedRow>(params, stream);
  if (params.stream.width <= kNarrow) return launch_rows<NarrowRow>(params, stream);
  launch_rows<WideRow>(params, stream);
}

}  // namespace quire::cuda
