#include "backend/cuda/activated.cuh"
#include "backend/cuda/launch.cuh"
#include "backend/cuda/ptx.cuh"
#include "backend/cuda/recurrent/recurrent.h"

namespace quire::cuda {
namespace {

constexpr uint32_t kThreads = 128;

// A channel of one run: what was before the run is in a state.
struct Channel {
  const DeviceConvolve& params;
  const TokenRun run;
  const uint32_t run_index, channel;
  const float* const before = params.inputs.before(run_index, 0);  // [span - 1, channels], or null

  // The input so many tokens before a place of the run.
  __device__ __forceinline__ float input_before(uint32_t place, uint32_t back) const {
    if (place >= back) return params.in.data[size_t(run.begin + place - back) * params.in.stride + channel];
    if (before == nullptr) return 0.0f;
    return before[size_t(params.span - 1 - (back - place)) * params.in.width + channel];
  }

  // A state that is left may be where the one before is. Upwards: what is read in the same place is further on.
  __device__ __forceinline__ void leave() const {
    for (uint32_t i = 0; i < params.inputs.left(run_index); ++i) {
      float* left = params.inputs.left(run_index, 0, i) + channel;
      const uint32_t place = params.inputs.left_row(run_index, i) - run.row;
      for (uint32_t back = params.span - 1; back > 0; --back, left += params.in.width)
        *left = input_before(place, back);
    }
  }
};

// A thread has a channel of some tokens. Whoever has a run's first tokens is the only one who reads the state before it, and leaves the
// others once it has.
template <uint32_t kSpan>
__global__ void __launch_bounds__(kThreads) convolve_pieces(const DeviceConvolve params, uint32_t parts) {
  ptx::follow_kernel_before();
  const RunPiece piece = params.pieces[blockIdx.x / parts];
  const uint32_t index = blockIdx.x % parts * kThreads + threadIdx.x;
  if (index >= params.in.width) return;
  const Channel channel{params, params.runs[piece.run], piece.run, index};
  const uint32_t span = kSpan == 0 ? params.span : kSpan;
  const float* weight = params.weight + size_t(index) * span;
  const float bias = params.bias == nullptr ? 0.0f : params.bias[index];
  constexpr uint32_t kHeld = kSpan == 0 ? kMostSpan : kSpan;
  float inputs[kHeld] = {}, weights[kHeld] = {};  // the newest input last
#pragma unroll
  for (uint32_t i = 0; i < kHeld; ++i) {
    if (i >= span) continue;
    weights[i] = weight[i];
    if (i + 1 < kHeld && i + 1 < span) inputs[i + 1] = channel.input_before(piece.place, span - 1 - i);
  }
  for (uint32_t t = 0; t < piece.count; ++t) {
    const size_t token = channel.run.begin + piece.place + t;
#pragma unroll
    for (uint32_t i = 0; i + 1 < kHeld; ++i) {
      if (i + 1 < span) inputs[i] = inputs[i + 1];
    }
    const float newest = params.in.data[token * params.in.stride + index];
    float sum = bias;
#pragma unroll
    for (uint32_t i = 0; i < kHeld; ++i) {
      if (i >= span) continue;
      if (i + 1 == span) inputs[i] = newest;
      sum += inputs[i] * weights[i];
    }
    if (params.has_function) sum = activated(params.function, sum, nullptr);
    params.out.data[token * params.out.stride + index] = sum;
  }
  if (piece.place == 0) channel.leave();
}

__global__ void __launch_bounds__(kThreads) split(const SplitHeadsParams params, uint32_t parts) {
  ptx::follow_kernel_before();
  const uint32_t token = blockIdx.x / parts, col = blockIdx.x % parts * kThreads + threadIdx.x;
  if (col >= params.both.width) return;
  const uint32_t dim = params.head_dim, head = col / (2 * dim), at = col % (2 * dim);
  const Rows& to = at < dim ? params.first : params.second;
  to.data[token * to.stride + head * dim + at % dim] = params.both.data[token * params.both.stride + col];
}

uint32_t parts_of(size_t columns) {
  return uint32_t((columns + kThreads - 1) / kThreads);
}

}  // namespace

void convolve(const DeviceConvolve& params, cudaStream_t stream) {
  CHECK(params.out.width == params.in.width && params.span > 1 && params.span <= kMostSpan);
  if (params.piece_count == 0) return;
  const uint32_t parts = parts_of(params.in.width);
  const auto kernel = params.span == 3   ? convolve_pieces<3>
                      : params.span == 4 ? convolve_pieces<4>
                                         : convolve_pieces<0>;
  launch(kernel, {.blocks = params.piece_count * parts, .threads = kThreads}, Overlap::with_kernel_before,
         stream, params, parts);
}

void split_heads(const SplitHeadsParams& params, cudaStream_t stream) {
  CHECK(params.both.width == 2 * params.first.width && params.second.width == params.first.width);
  CHECK(params.head_dim > 0 && params.first.width % params.head_dim == 0);
  if (params.both.rows == 0) return;
  const uint32_t parts = parts_of(params.both.width);
  launch(split, {.blocks = uint32_t(params.both.rows) * parts, .threads = kThreads},
         Overlap::with_kernel_before, stream, params, parts);
}

}  // namespace quire::cuda
