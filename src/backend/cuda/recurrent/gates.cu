#include "backend/cuda/activated.cuh"
#include "backend/cuda/lane_sums.cuh"
#include "backend/cuda/launch.cuh"
#include "backend/cuda/matmul/activation_layout.h"
#include "backend/cuda/ptx.cuh"
#include "backend/cuda/recurrent/recurrent.h"

// What stands before and behind a recurrence. A block of threads has a token, or some heads of one: so few tokens keep more than a few
// multiprocessors busy.

namespace quire::cuda {
namespace {

constexpr uint32_t kThreads = 256;
constexpr uint32_t kWarps = kThreads / 32;
constexpr float kLengthEpsilon = 1e-6f;  // of queries and keys

// The sum over the block's threads: lanes in a tree, then warps in order.
__device__ __forceinline__ float sum_of_block(float value, float* scratch) {
#pragma unroll
  for (int width = 16; width > 0; width /= 2) value += __shfl_xor_sync(~0u, value, width);
  __syncthreads();  // the sum before has been read
  if (threadIdx.x % 32 == 0) scratch[threadIdx.x / 32] = value;
  __syncthreads();
  float sum = scratch[0];
  for (uint32_t w = 1; w < kWarps; ++w) sum += scratch[w];
  return sum;
}

// Makes a vector as long as `length`, by a warp.
__device__ __forceinline__ void set_length(float* values, uint32_t count, float length) {
  const float squares = sum_in_lanes(count, [&](uint32_t i) { return values[i] * values[i]; });
  const float scale = length / square_root(squares + kLengthEpsilon);
  __syncwarp();
  for (uint32_t i = threadIdx.x % 32; i < count; i += 32) values[i] *= scale;
}

__global__ void __launch_bounds__(kThreads) open_gates(const DeviceDeltaGates params, uint32_t parts) {
  ptx::follow_kernel_before();
  const uint32_t token = blockIdx.x / parts, part = blockIdx.x % parts;
  const uint32_t heads = params.value_heads, shared = heads / params.key_heads;
  float* row = params.mixed.data + token * params.mixed.stride;
  if (const uint32_t h = part * kWarps + threadIdx.x / 32; h < 2 * params.key_heads) {
    const bool is_query = h < params.key_heads;
    set_length(row + h * params.key_dim, params.key_dim,
               is_query ? 1.0f / square_root(float(params.key_dim)) : 1.0f);
  }
  const float* beta = params.beta.data + token * params.beta.stride;
  const bool apart = params.alpha.data != nullptr;
  const float* alpha = apart ? params.alpha.data + token * params.alpha.stride : beta + shared;
  const auto place = [&](uint32_t i) { return apart ? i : i / shared * 2 * shared + i % shared; };
  const uint32_t each = params.decay_count / heads;
  for (uint32_t i = part * kThreads + threadIdx.x; i < params.decay_count; i += parts * kThreads) {
    const float step = softplus_of(alpha[place(i)] + params.alpha_bias[i]);
    params.decays[size_t(token) * params.decay_count + i] = exp_of(step * params.rate[i / each]);
  }
  for (uint32_t h = part * kThreads + threadIdx.x; h < heads; h += parts * kThreads)
    params.betas[size_t(token) * heads + h] = 1.0f / (1.0f + exp_of(-beta[place(h)]));
}

__global__ void __launch_bounds__(kThreads) make_steps(const DeviceSteps params, uint32_t parts) {
  ptx::follow_kernel_before();
  const uint32_t token = blockIdx.x / parts, i = blockIdx.x % parts * kThreads + threadIdx.x;
  if (i >= params.in.width) return;
  const float step = softplus_of(params.in.data[token * params.in.stride + i] + params.bias[i]);
  params.steps.data[token * params.steps.stride + i] = step;
  if (params.rate != nullptr) params.decays[token * params.in.width + i] = exp_of(step * params.rate[i]);
}

// The numbers of a row from `begin` to `end`, value(col) each, to wherever they are wanted. Two neighbours stay together in the order
// of activations. What is behind `width` is zero.
template <class Value>
__device__ __forceinline__ void write_row(uint32_t token, uint32_t begin, uint32_t end, uint32_t width,
                                          const ActivationBlock& out, const Rows& out_f32,
                                          const Value& value) {
  for (uint32_t col = begin + 2 * threadIdx.x; col < end; col += 2 * kThreads) {
    float two[2] = {0, 0};
#pragma unroll
    for (uint32_t i = 0; i < 2; ++i) {
      if (col + i >= width) continue;
      two[i] = value(col + i);
      if (out_f32.data != nullptr) out_f32.data[token * out_f32.stride + col + i] = two[i];
    }
    if (out.data != nullptr)
      *reinterpret_cast<uint32_t*>(out.data + activation_place(out.tokens, token, col)) =
          ptx::pack_bf16(two[0], two[1]);
  }
}

// Of an even number of columns each.
constexpr uint32_t kHeadsOfBlock = kWarps;
__global__ void __launch_bounds__(kThreads) norm_and_gate_heads(const DeviceDeltaEnd params, uint32_t parts) {
  __shared__ float scales[kHeadsOfBlock];
  ptx::follow_kernel_before();
  const uint32_t token = blockIdx.x / parts, part = blockIdx.x % parts, first = part * kHeadsOfBlock;
  const uint32_t dim = params.dim, width = uint32_t(params.read.width), heads = width / dim;
  const float* read = params.read.data + token * params.read.stride;
  const float* gate = params.gate.data + token * params.gate.stride;
  if (const uint32_t h = first + threadIdx.x / 32; h < heads) {
    const float* own = read + h * dim;
    const float squares = sum_in_lanes(dim, [&](uint32_t i) { return own[i] * own[i]; });
    if (threadIdx.x % 32 == 0) scales[h - first] = 1.0f / square_root(squares / float(dim) + params.epsilon);
  }
  __syncthreads();
  const uint32_t end = part + 1 == parts ? round_up(width, kBlockK) : (first + kHeadsOfBlock) * dim;
  write_row(token, first * dim, end, width, params.out, params.out_f32, [&](uint32_t col) {
    const float normed = read[col] * scales[col / dim - first] * params.weight[col % dim];
    return activated(params.function, gate[col], &normed);
  });
}

// `scales`: memory for one of each group.
__global__ void __launch_bounds__(kThreads) skip_and_gate(const DeviceStateEnd params) {
  extern __shared__ float scales[];
  __shared__ float scratch[kWarps];
  ptx::follow_kernel_before();
  const uint32_t token = blockIdx.x, width = uint32_t(params.read.width);
  float* read = params.read.data + token * params.read.stride;
  const float* in = params.in.data + token * params.in.stride;
  const float* gate = params.gate.data + token * params.gate.stride;
  const auto gated = [&](uint32_t col) {
    return silu(gate[col]) * (read[col] + in[col] * params.skip[col / params.skip_width]);
  };
  const uint32_t end = round_up(width, kBlockK);
  if (params.groups == 0) return write_row(token, 0, end, width, params.out, params.out_f32, gated);
  const uint32_t group = width / params.groups;
  for (uint32_t g = 0; g < params.groups; ++g) {
    float squares = 0;
    for (uint32_t col = g * group + threadIdx.x; col < (g + 1) * group; col += kThreads) {
      const float value = gated(col);
      read[col] = value;
      squares += value * value;
    }
    squares = sum_of_block(squares, scratch);
    if (threadIdx.x == 0) scales[g] = 1.0f / square_root(squares / float(group) + params.epsilon);
  }
  __syncthreads();
  write_row(token, 0, end, width, params.out, params.out_f32,
            [&](uint32_t col) { return read[col] * scales[col / group] * params.weight[col]; });
}

__global__ void __launch_bounds__(kBlockK / 2) clear_columns(const ActivationBlock block) {
  ptx::follow_kernel_before();
  const uint32_t col = block.cols / 2 * 2 + 2 * threadIdx.x;
  if (col >= round_up(block.cols, kBlockK)) return;
  auto* at = reinterpret_cast<uint16_t*>(block.data + activation_place(block.tokens, blockIdx.x, col));
  if (col >= block.cols) at[0] = 0;
  at[1] = 0;
}

}  // namespace

void open_delta_gates(const DeviceDeltaGates& params, cudaStream_t stream) {
  CHECK(params.value_heads % params.key_heads == 0 && params.decay_count % params.value_heads == 0);
  CHECK(params.alpha.data != nullptr || params.decay_count == params.value_heads);
  if (params.mixed.rows == 0) return;
  const uint32_t parts = (2 * params.key_heads + kWarps - 1) / kWarps;
  launch(open_gates, {.blocks = uint32_t(params.mixed.rows) * parts, .threads = kThreads},
         Overlap::with_kernel_before, stream, params, parts);
}

void state_steps(const DeviceSteps& params, cudaStream_t stream) {
  if (params.in.rows == 0) return;
  const uint32_t parts = uint32_t((params.in.width + kThreads - 1) / kThreads);
  launch(make_steps, {.blocks = uint32_t(params.in.rows) * parts, .threads = kThreads},
         Overlap::with_kernel_before, stream, params, parts);
}

void end_delta_net(const DeviceDeltaEnd& params, cudaStream_t stream) {
  CHECK(params.dim > 0 && params.read.width % params.dim == 0 && params.gate.width == params.read.width);
  CHECK(params.out.data == nullptr || params.out.cols == params.read.width);
  if (params.read.rows == 0) return;
  const uint32_t parts = uint32_t((params.read.width / params.dim + kHeadsOfBlock - 1) / kHeadsOfBlock);
  launch(norm_and_gate_heads, {.blocks = uint32_t(params.read.rows) * parts, .threads = kThreads},
         Overlap::with_kernel_before, stream, params, parts);
}

void end_state_space(const DeviceStateEnd& params, cudaStream_t stream) {
  CHECK(params.groups == 0 || params.read.width % params.groups == 0);
  CHECK(params.out.data == nullptr || params.out.cols == params.read.width);
  if (params.read.rows == 0) return;
  launch(skip_and_gate,
         {.blocks = uint32_t(params.read.rows),
          .threads = kThreads,
          .shared_bytes = uint32_t(params.groups * sizeof(float))},
         Overlap::with_kernel_before, stream, params);
}

void clear_padding(const ActivationBlock& block, cudaStream_t stream) {
  if (block.tokens == 0 || block.cols % kBlockK == 0) return;
  launch(clear_columns, {.blocks = block.tokens, .threads = kBlockK / 2}, Overlap::with_kernel_before, stream,
         block);
}

}  // namespace quire::cuda
