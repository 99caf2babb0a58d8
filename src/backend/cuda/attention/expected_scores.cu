#include "backend/cuda/attention/attention_plain.h"
#include "backend/cuda/attention/kv_row_codes.cuh"
#include "backend/cuda/attention/taps.h"
#include "backend/cuda/launch.cuh"

namespace quire::cuda {
namespace {

constexpr uint32_t kThreads = 256;
constexpr uint32_t kMostDim = kMostLatentDim;
constexpr uint32_t kRowsAtOnce = 8;  // of a block of threads: the covariance is read once for all of them

// Of one head's samples.
struct HeadMoments {
  float* mean;        // [dim]
  float* covariance;  // [dim, dim]
};
__device__ __forceinline__ HeadMoments moments_of(const DeviceExpectedScores& params, uint32_t head) {
  const size_t dim = params.rows.query_dim();
  float* mean = params.moments + head * (dim + dim * dim);
  return {mean, mean + dim};
}

// A block of threads has a head.
__global__ void __launch_bounds__(kThreads) sample_moments(const DeviceExpectedScores params) {
  __shared__ float means[kMostDim];
  const uint32_t dim = params.rows.query_dim(), head = blockIdx.x, count = uint32_t(params.samples.rows);
  const HeadMoments moments = moments_of(params, head);
  const double share = 1.0 / double(count);
  const auto sample = [&](uint32_t s, uint32_t d) {
    return params.samples.data[s * params.samples.stride + size_t(head) * dim + d];
  };
  for (uint32_t d = threadIdx.x; d < dim; d += kThreads) {
    double sum = 0;
    for (uint32_t s = 0; s < count; ++s) sum += double(sample(s, d));
    means[d] = moments.mean[d] = float(sum * share);
  }
  __syncthreads();
  for (uint32_t i = threadIdx.x; i < dim * dim; i += kThreads) {
    const uint32_t a = i / dim, b = i % dim;
    float sum = 0;
    for (uint32_t s = 0; s < count; ++s) sum = fused(sample(s, a) - means[a], sample(s, b) - means[b], sum);
    moments.covariance[i] = sum * float(share);
  }
}

struct RowOfPages {
  const DeviceExpectedScores& params;
  uint32_t kv_head;
  __device__ __forceinline__ const std::byte* key(uint32_t row) const {
    return params.rows.key_row(page(row), kv_head, row % params.rows.page_tokens);
  }
  __device__ __forceinline__ const std::byte* value(uint32_t row) const {
    return params.rows.value_row(page(row), kv_head, row % params.rows.page_tokens);
  }
  __device__ __forceinline__ uint32_t page(uint32_t row) const {
    return params.page_ids[row / params.rows.page_tokens];
  }
};

// A warp's sum, in a fixed order; all lanes have it.
__device__ __forceinline__ double warp_sum(double value) {
#pragma unroll
  for (int width = 16; width > 0; width /= 2) value += __shfl_xor_sync(~0u, value, width);
  return value;
}

// Some rows of a KV head, for all its query heads: a warp brings each row and has its sums.
__global__ void __launch_bounds__(kThreads) score_rows(const DeviceExpectedScores params, uint32_t parts) {
  static_assert(kThreads / 32 == kRowsAtOnce);
  __shared__ float keys[kRowsAtOnce][kMostDim];
  __shared__ float products[kRowsAtOnce]
                           [kMostDim];  // of a dimension: mean, and half the spread, of its part of the score
  const uint32_t kv_head = blockIdx.x / parts, first = blockIdx.x % parts * kRowsAtOnce;
  const uint32_t warp = threadIdx.x / 32, lane = threadIdx.x % 32, row = first + warp;
  const uint32_t key_dim = params.rows.key_dim, dim = params.rows.query_dim();
  const uint32_t value_dim = params.rows.value_dim, group = params.heads / params.rows.kv_heads;
  const RowOfPages pages{params, kv_head};
  for (uint32_t d = lane; d < key_dim; d += 32)
    keys[warp][d] = row < params.row_count ? row_value(params.key_format, pages.key(row), key_dim, d) : 0.0f;
  for (uint32_t d = lane; d < dim - key_dim; d += 32)
    keys[warp][key_dim + d] =
        row < params.row_count ? row_value(params.value_format, pages.value(row), value_dim, d) : 0.0f;
  __syncwarp();
  if (is_turned(params.key_format)) turn(keys[warp], key_dim);  // as it was
  if (dim > key_dim && is_turned(params.value_format)) turn(keys[warp] + key_dim, value_dim);
  __syncthreads();
  for (uint32_t head = kv_head * group; head < (kv_head + 1) * group; ++head) {
    const HeadMoments moments = moments_of(params, head);
    const float half = 0.5f * params.scale * params.scale;
    for (uint32_t d = threadIdx.x; d < dim; d += kThreads) {
      float spread[kRowsAtOnce] = {};
      for (uint32_t j = 0; j < dim; ++j) {
        const float factor = moments.covariance[j * dim + d];  // it is symmetric
#pragma unroll
        for (uint32_t r = 0; r < kRowsAtOnce; ++r) spread[r] = fused(factor, keys[r][j], spread[r]);
      }
#pragma unroll
      for (uint32_t r = 0; r < kRowsAtOnce; ++r)
        products[r][d] = fused(half, spread[r], params.scale * moments.mean[d]) * keys[r][d];
    }
    __syncthreads();
    double sum = 0;
    for (uint32_t d = lane; d < dim; d += 32) sum += double(products[warp][d]);
    sum = warp_sum(sum);
    if (lane == 0 && row < params.row_count)
      params.scores.data[head * params.scores.stride + row] = float(sum);
    __syncthreads();
  }
  if (row >= params.row_count) return;
  double squares = 0;
  for (uint32_t d = lane; d < params.rows.value_dim; d += 32) {
    const double value = double(row_value(params.value_format, pages.value(row), params.rows.value_dim, d));
    squares += value * value;
  }
  squares = warp_sum(squares);
  if (lane == 0) params.value_norms.data[kv_head * params.value_norms.stride + row] = float(sqrt(squares));
}

}  // namespace

size_t moments_bytes(uint32_t heads, uint32_t query_dim) {
  return size_t(heads) * (size_t(query_dim) + size_t(query_dim) * query_dim) * sizeof(float);
}

void expected_scores(const DeviceExpectedScores& params, cudaStream_t stream) {
  CHECK(params.rows.query_dim() <= kMostDim && params.samples.rows > 0);
  CHECK(params.scores.width >= params.row_count && params.value_norms.width >= params.row_count);
  if (params.row_count == 0) return;
  launch(sample_moments, {.blocks = params.heads, .threads = kThreads}, Overlap::none, stream, params);
  const uint32_t parts = (params.row_count + kRowsAtOnce - 1) / kRowsAtOnce;
  launch(score_rows, {.blocks = parts * params.rows.kv_heads, .threads = kThreads}, Overlap::none, stream,
         params, parts);
}

}  // namespace quire::cuda
