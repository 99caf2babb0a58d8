#include <algorithm>

#include "backend/cuda/attention/attention_plain.h"
#include "backend/cuda/attention/kv_row_codes.cuh"
#include "backend/cuda/attention/taps.h"
#include "backend/cuda/launch.cuh"

// Written for clarity before speed: a few tokens of a prompt are asked for only.

namespace quire::cuda {
namespace {

constexpr uint32_t kThreads = 256;
constexpr uint32_t kMostDim = kMostLatentDim;

__device__ __forceinline__ float query_number(const AttentionParams& attend, uint32_t token, uint32_t head,
                                              uint32_t d) {
  const uint16_t bits = attend.query[(size_t(token) * attend.heads + head) * attend.rows.query_dim() + d];
  const HalfKind numbers = d < attend.rows.key_dim ? attend.numbers : numbers_of(attend.value_format);
  return numbers == HalfKind::bf16 ? bf16_number(bits) : f16_number(bits);
}

// A thread has a row, and its score with one head. [heads, rows up to the token's own]
__global__ void __launch_bounds__(kThreads) tap_scores(const AttentionParams attend, const DeviceTap params) {
  __shared__ float query[kMostDim];
  const uint32_t rows = params.row + 1, parts = (rows + kThreads - 1) / kThreads;
  const uint32_t i = blockIdx.x / parts, row = blockIdx.x % parts * kThreads + threadIdx.x;
  const uint32_t head = params.tap.first_head + i, dim = attend.rows.key_dim;
  for (uint32_t d = threadIdx.x; d < attend.rows.query_dim(); d += kThreads)
    query[d] = query_number(attend, params.tap.token, head, d);
  __syncthreads();
  if (row >= rows || row < first_visible(params.row, attend.window)) return;
  const uint32_t page = attend.page_ids[params.table + row / attend.rows.page_tokens];
  const std::byte* key = attend.rows.key_row(page, head / attend.group(), row % attend.rows.page_tokens);
  float sums[4] = {0, 0, 0, 0};
  for (uint32_t d = 0; d < dim; ++d)
    sums[d % 4] = fused(query[d], row_value(attend.key_format, key, dim, d), sums[d % 4]);
  if (attend.rows.key_goes_on) {
    const std::byte* value =
        attend.rows.value_row(page, head / attend.group(), row % attend.rows.page_tokens);
    const uint32_t value_dim = attend.rows.value_dim;
    for (uint32_t d = 0; d < value_dim; ++d)
      sums[d % 4] = fused(query[dim + d], row_value(attend.value_format, value, value_dim, d), sums[d % 4]);
  }
  float score = attend.scale * ((sums[0] + sums[1]) + (sums[2] + sums[3]));
  if (attend.soft_cap > 0) score = attend.soft_cap * tanhf(score / attend.soft_cap);
  params.scratch[size_t(i) * rows + row] = score;
}

// All threads have the result; `values` has a place for each of them.
template <class Value, class Join>
__device__ __forceinline__ Value reduce(Value value, Value* values, const Join& join) {
  values[threadIdx.x] = value;
  __syncthreads();
  for (uint32_t width = kThreads / 2; width > 0; width /= 2) {
    if (threadIdx.x < width) values[threadIdx.x] = join(values[threadIdx.x], values[threadIdx.x + width]);
    __syncthreads();
  }
  const Value result = values[0];
  __syncthreads();
  return result;
}

// What is known of one head joins a row of values: value(j) for j below `known`.
template <class Value>
__device__ __forceinline__ void join_row(const Tap& tap, uint32_t i, float* values, uint32_t known,
                                         const Value& value) {
  float* to = values + size_t(i / tap.heads_per_row) * tap.width;
  for (uint32_t j = threadIdx.x; j < tap.width; j += kThreads) {
    if (tap.join == Tap::Join::store) {
      to[j] = j < known ? value(j) : 0.0f;
    } else if (j < known) {
      const float add = value(j);
      to[j] = tap.join == Tap::Join::sum ? to[j] + add : to[j] < add ? add : to[j];
    }
  }
  __syncthreads();
}

// A block of threads has a row of values, and the heads that join it in their order.
__global__ void __launch_bounds__(kThreads) tap_shares(const AttentionParams attend, const DeviceTap params) {
  __shared__ double places[kThreads];
  const Tap& tap = params.tap;
  const uint32_t rows = params.row + 1, first = first_visible(params.row, attend.window);
  for (uint32_t i = blockIdx.x * tap.heads_per_row; i < (blockIdx.x + 1) * tap.heads_per_row; ++i) {
    const float* scores = params.scratch + size_t(i) * rows;
    const float* sink = attend.sinks == nullptr ? nullptr : attend.sinks + tap.first_head + i;
    float most = sink == nullptr ? -infinity() : *sink;
    for (uint32_t j = first + threadIdx.x; j < rows; j += kThreads) most = larger(most, scores[j]);
    most = float(reduce(double(most), places, [](double a, double b) { return a < b ? b : a; }));
    double sum = 0;
    for (uint32_t j = first + threadIdx.x; j < rows; j += kThreads) sum += double(expf(scores[j] - most));
    sum = reduce(sum, places, [](double a, double b) { return a + b; });
    if (sink != nullptr) sum += double(expf(*sink - most));
    const double inverse = 1.0 / sum;
    join_row(tap, i, params.values, rows,
             [&](uint32_t j) { return j < first ? 0.0f : float(double(expf(scores[j] - most)) * inverse); });
  }
}

__global__ void __launch_bounds__(kThreads)
    tap_queries(const AttentionParams attend, const DeviceTap params) {
  __shared__ float query[kMostDim];
  const Tap& tap = params.tap;
  const uint32_t key_dim = attend.rows.key_dim, dim = attend.rows.query_dim();
  for (uint32_t i = blockIdx.x * tap.heads_per_row; i < (blockIdx.x + 1) * tap.heads_per_row; ++i) {
    for (uint32_t d = threadIdx.x; d < dim; d += kThreads)
      query[d] = query_number(attend, tap.token, tap.first_head + i, d);
    __syncthreads();
    if (is_turned(attend.key_format) && threadIdx.x < 32) turn(query, key_dim);
    if (attend.rows.key_goes_on && is_turned(attend.value_format) && threadIdx.x < 32)
      turn(query + key_dim, dim - key_dim);
    __syncthreads();
    join_row(tap, i, params.values, dim, [&](uint32_t d) { return query[d]; });
  }
}

}  // namespace

size_t tap_scratch_bytes(const Tap& tap, uint32_t row) {
  return tap.what == Tap::What::shares ? size_t(tap.heads) * (size_t(row) + 1) * sizeof(float) : 0;
}

void tap(const AttentionParams& attend, const DeviceTap& params, cudaStream_t stream) {
  const Tap& tap = params.tap;
  CHECK(tap.heads > 0 && tap.first_head + tap.heads <= attend.heads && attend.rows.query_dim() <= kMostDim);
  CHECK(tap.heads_per_row > 0 && tap.heads % tap.heads_per_row == 0);
  CHECK(attend.numbers == numbers_of(attend.key_format));
  if (tap.what == Tap::What::queries) {
    launch(tap_queries, {.blocks = tap.rows(), .threads = kThreads}, Overlap::none, stream, attend, params);
    return;
  }
  const uint32_t parts = (params.row + kThreads) / kThreads;
  launch(tap_scores, {.blocks = tap.heads * parts, .threads = kThreads}, Overlap::none, stream, attend,
         params);
  launch(tap_shares, {.blocks = tap.rows(), .threads = kThreads}, Overlap::none, stream, attend, params);
}

}  // namespace quire::cuda
