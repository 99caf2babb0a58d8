#include "backend/cuda/exact/exact.h"
#include "backend/cuda/launch.cuh"
#include "backend/cuda/operations.h"

namespace quire::cuda {
namespace {

constexpr uint32_t kWarps = 8;
constexpr uint32_t kTokensAtOnce = 8;

// Row by row of a stack of matrices: `choice` says which of them an input row is multiplied with.
struct StackedProduct {
  const float* weight;      // [matrices * out, in]
  const float* bias;        // [matrices * out], or null
  const uint32_t* choice;   // [inputs]; null: the only one
  uint32_t inputs_per_row;  // so many inputs, one after the other, are the same row of `in`
  Rows in, out;
};

// A warp has one row of weights; of a stack it goes through the inputs one by one, for each may want another matrix.
template <uint32_t kInputs>
__global__ void __launch_bounds__(32 * kWarps)
    multiply_rows(const StackedProduct params, uint32_t row_parts) {
  const uint32_t lane = threadIdx.x % 32, rows = uint32_t(params.out.width), cols = uint32_t(params.in.width);
  const uint32_t row = blockIdx.x % row_parts * kWarps + threadIdx.x / 32;
  const uint32_t first = blockIdx.x / row_parts * kInputs;
  if (row >= rows) return;
  const size_t matrix = params.choice == nullptr ? 0 : params.choice[first];
  const float* weight = params.weight + (matrix * rows + row) * cols;
  double sums[kInputs] = {};
  for (uint32_t c = lane; c < cols; c += 32) {
    const double factor = double(weight[c]);
#pragma unroll
    for (uint32_t i = 0; i < kInputs; ++i) {
      if (first + i >= params.out.rows) continue;
      const float* in = params.in.data + (first + i) / params.inputs_per_row * params.in.stride;
      sums[i] += factor * double(in[c]);
    }
  }
#pragma unroll
  for (uint32_t i = 0; i < kInputs; ++i) {
#pragma unroll
    for (int width = 16; width > 0; width /= 2) sums[i] += __shfl_xor_sync(~0u, sums[i], width);
    if (lane == 0 && first + i < params.out.rows)
      params.out.data[(first + i) * params.out.stride + row] =
          float(sums[i] + (params.bias == nullptr ? 0.0 : double(params.bias[matrix * rows + row])));
  }
}

void multiply(const StackedProduct& params, cudaStream_t stream) {
  const uint32_t inputs = uint32_t(params.out.rows), parts = uint32_t(params.out.width + kWarps - 1) / kWarps;
  if (inputs == 0 || parts == 0) return;
  if (params.choice != nullptr) {
    launch(multiply_rows<1>, {.blocks = parts * inputs, .threads = 32 * kWarps}, Overlap::none, stream,
           params, parts);
  } else {
    launch(multiply_rows<kTokensAtOnce>,
           {.blocks = parts * ((inputs + kTokensAtOnce - 1) / kTokensAtOnce), .threads = 32 * kWarps},
           Overlap::none, stream, params, parts);
  }
}

// A warp has a row of a head's matrix for one token, or a number that is left of the head.
__global__ void __launch_bounds__(32 * kWarps) multiply_heads(const ExactHeads params, uint32_t parts) {
  const uint32_t lane = threadIdx.x % 32, cols = params.cols;
  const uint32_t in_dim = uint32_t(params.in.width) / params.heads, rest = in_dim - cols;
  const uint32_t out_dim = rest + params.rows, at = blockIdx.x % parts * kWarps + threadIdx.x / 32;
  const uint32_t head = blockIdx.x / parts % params.heads, token = blockIdx.x / parts / params.heads;
  if (at >= out_dim) return;
  const float* in = params.in.data + token * params.in.stride + size_t(head) * in_dim;
  float* out = params.out.data + token * params.out.stride + size_t(head) * out_dim;
  if (at < rest) {
    if (lane == 0) out[at] = in[cols + at];
    return;
  }
  const float* weight = params.weight + (size_t(head) * params.rows + (at - rest)) * cols;
  double sum = 0;
  for (uint32_t c = lane; c < cols; c += 32) sum += double(weight[c]) * double(in[c]);
#pragma unroll
  for (int width = 16; width > 0; width /= 2) sum += __shfl_xor_sync(~0u, sum, width);
  if (lane == 0) out[at] = float(sum);
}

// A token adds its experts in the order of its routing.
__global__ void add_experts(const Rows down, const float* shares, uint32_t used, const Rows out) {
  const uint32_t token = blockIdx.x;
  for (uint32_t c = threadIdx.x; c < out.width; c += blockDim.x) {
    float sum = 0;
    for (uint32_t place = token * used; place < (token + 1) * used; ++place)
      sum += shares[place] * down.data[place * down.stride + c];
    out.data[token * out.stride + c] = sum;
  }
}

}  // namespace

void exact_product(const ExactProduct& params, cudaStream_t stream) {
  CHECK(params.in.rows >= params.out.rows);
  multiply({.weight = params.weight,
            .bias = params.bias,
            .choice = nullptr,
            .inputs_per_row = 1,
            .in = params.in,
            .out = params.out},
           stream);
}

void exact_heads(const ExactHeads& params, cudaStream_t stream) {
  const size_t out_dim = params.out.width / params.heads;
  CHECK(params.in.width % params.heads == 0 && params.in.width / params.heads >= params.cols);
  CHECK(params.out.width == params.heads * (params.in.width / params.heads - params.cols + params.rows));
  CHECK(params.in.rows >= params.out.rows);
  if (params.out.rows == 0) return;
  const auto parts = uint32_t((out_dim + kWarps - 1) / kWarps);
  launch(multiply_heads, {.blocks = unsigned(params.out.rows) * params.heads * parts, .threads = 32 * kWarps},
         Overlap::none, stream, params, parts);
}

size_t exact_expert_bytes(size_t tokens, size_t used, size_t expert_width, size_t dim) {
  return tokens * used * (2 * expert_width + dim) * sizeof(float);
}

void exact_experts(const ExactExperts& params, cudaStream_t stream) {
  const size_t inputs = params.out.rows * params.used, width = params.expert_width, dim = params.out.width;
  if (inputs == 0) return;
  const Rows gate = {params.scratch, inputs, width, width},
             up = {gate.data + inputs * width, inputs, width, width},
             down = {up.data + inputs * width, inputs, dim, dim};
  const auto product = [&](const float* weight, const float* bias, uint32_t inputs_per_row, const Rows& in,
                           const Rows& out) {
    multiply({weight, bias, params.experts, inputs_per_row, in, out}, stream);
  };
  const bool gated = params.gate != nullptr;
  if (gated) product(params.gate, params.gate_bias, params.used, params.in, gate);
  product(params.up, params.up_bias, params.used, params.in, gated ? up : gate);
  activate({.gate = gate, .up = gated ? up : Rows{}, .function = params.function, .out = {}, .out_f32 = gate},
           stream);
  product(params.down, params.down_bias, 1, gate, down);
  launch(add_experts, {.blocks = unsigned(params.out.rows), .threads = 256}, Overlap::none, stream, down,
         params.shares, params.used, params.out);
}

}  // namespace quire::cuda
