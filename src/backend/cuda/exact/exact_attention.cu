#include "backend/cuda/attention/attention_plain.h"
#include "backend/cuda/attention/attention_rule.h"
#include "backend/cuda/attention/kv_row_codes.cuh"
#include "backend/cuda/attention/kv_row_numbers.h"
#include "backend/cuda/exact/exact.h"
#include "backend/cuda/launch.cuh"

namespace quire::cuda {
namespace {

constexpr uint32_t kThreads = 128;  // each has a key of a block, and then some dimensions
constexpr uint32_t kMostDim = kMostHeadDim;
constexpr uint32_t kDims = kMostDim / kThreads;

__device__ __forceinline__ double largest_of(const double* scores, uint32_t count) {
  double most = scores[0];
  for (uint32_t i = 1; i < count; ++i) most = most < scores[i] ? scores[i] : most;
  return most;
}

// A block of threads has one head of one token. Keys come in blocks from the first that it sees, under a running maximum.
struct ExactRow {
  const ExactAttention& params;
  uint32_t token, head;
  const uint32_t row = params.token_rows[token], table = params.token_tables[token];
  const uint32_t kv_head = head / (params.heads / params.rows.kv_heads);
  double most = params.sinks == nullptr ? -double(infinity()) : double(params.sinks[head]);
  double sum = params.sinks == nullptr ? 0.0 : 1.0;
  double values[kDims] = {};

  __device__ __forceinline__ uint32_t page_of(uint32_t key) const {
    return params.page_ids[table + key / params.rows.page_tokens];
  }

  __device__ __forceinline__ double score(uint32_t key, const float* query) const {
    const uint32_t dim = params.rows.key_dim;
    const std::byte* at = params.rows.key_row(page_of(key), kv_head, key % params.rows.page_tokens);
    double products = 0;
    for (uint32_t d = 0; d < dim; ++d)
      products += double(query[d]) * double(row_value(params.key_format, at, dim, d));
    if (params.rows.key_goes_on) {
      const uint32_t more = params.rows.value_dim;
      at = params.rows.value_row(page_of(key), kv_head, key % params.rows.page_tokens);
      for (uint32_t d = 0; d < more; ++d)
        products += double(query[dim + d]) * double(row_value(params.value_format, at, more, d));
    }
    products *= double(params.scale);
    return params.soft_cap > 0 ? double(params.soft_cap) * tanh(products / double(params.soft_cap))
                               : products;
  }

  // `shares`: scores of the block's keys, which become their shares.
  __device__ __forceinline__ void add_block(uint32_t first, uint32_t count, double* shares) {
    const double largest = largest_of(shares, count), next = most < largest ? largest : most;
    const double factor = exp(most - next);
    most = next;
    __syncthreads();
    if (threadIdx.x < count) shares[threadIdx.x] = exp(shares[threadIdx.x] - most);
    __syncthreads();
    sum *= factor;
    for (uint32_t i = 0; i < count; ++i) sum += shares[i];
#pragma unroll
    for (uint32_t j = 0; j < kDims; ++j) {
      const uint32_t d = threadIdx.x + j * kThreads;
      if (d >= params.rows.value_dim) continue;
      values[j] *= factor;
      for (uint32_t i = 0; i < count; ++i) {
        const uint32_t key = first + i;
        const std::byte* at = params.rows.value_row(page_of(key), kv_head, key % params.rows.page_tokens);
        values[j] += shares[i] * double(row_value(params.value_format, at, params.rows.value_dim, d));
      }
    }
    __syncthreads();
  }
};

__global__ void __launch_bounds__(kThreads) attend_exactly(const ExactAttention params) {
  __shared__ float query[kMostLatentDim];
  __shared__ double shares[kThreads];
  const uint32_t query_dim = params.rows.query_dim(), value_dim = params.rows.value_dim;
  ExactRow own{params, blockIdx.x / params.heads, blockIdx.x % params.heads};
  for (uint32_t d = threadIdx.x; d < query_dim; d += kThreads)
    query[d] = params.query.data[own.token * params.query.stride + size_t(own.head) * query_dim + d];
  __syncthreads();
  for (uint32_t first = first_visible(own.row, params.window); first <= own.row; first += kThreads) {
    const uint32_t count = min(kThreads, own.row + 1 - first);
    if (threadIdx.x < count) shares[threadIdx.x] = own.score(first + threadIdx.x, query);
    __syncthreads();
    own.add_block(first, count, shares);
  }
  float* result = query;  // which nobody reads any more
#pragma unroll
  for (uint32_t j = 0; j < kDims; ++j) {
    const uint32_t d = threadIdx.x + j * kThreads;
    if (d < value_dim) result[d] = float(own.values[j] / own.sum);
  }
  __syncthreads();
  if (is_turned(params.value_format) && threadIdx.x < 32) turn(result, value_dim);
  __syncthreads();
  for (uint32_t d = threadIdx.x; d < value_dim; d += kThreads)
    params.out.data[own.token * params.out.stride + size_t(own.head) * value_dim + d] = result[d];
}

}  // namespace

void exact_attention(const ExactAttention& params, cudaStream_t stream) {
  CHECK(params.rows.query_dim() <= (params.rows.key_goes_on ? kMostLatentDim : kMostDim));
  CHECK(params.rows.value_dim <= kMostDim);
  CHECK(params.heads % params.rows.kv_heads == 0);
  if (params.out.rows == 0) return;
  launch(attend_exactly, {.blocks = unsigned(params.out.rows) * params.heads, .threads = kThreads},
         Overlap::none, stream, params);
}

}  // namespace quire::cuda
