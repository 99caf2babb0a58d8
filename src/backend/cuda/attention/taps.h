#pragma once

#include <cstddef>
#include <cstdint>

#include <cuda_runtime_api.h>

#include "backend/backend.h"
#include "backend/cuda/attention/attention.h"

// What scorers ask of attention, on the device: where a token looks, its queries, and what queries to come are expected to make of
// rows. The meaning is that of the operations of the same names in backend/backend.h; pointers are to device memory, pages of
// any format. Sums go in a fixed order, so a result is the same whatever else is in the step. Queries are those that attention
// gets, rounded to 16 bits.

namespace quire::cuda {

struct DeviceTap {
  Tap tap;                   // its `token` is one of the queries; `layer` and `at` are the caller's
  uint32_t row = 0;          // where the token's own key is
  uint32_t table = 0;        // where its sequence's table begins in page_ids
  float* values = nullptr;   // [tap.rows(), tap.width]
  float* scratch = nullptr;  // tap_scratch_bytes
};
// Only shares need some.
size_t tap_scratch_bytes(const Tap& tap, uint32_t row);

// REQUIRES: the token's keys are stored.
void tap(const AttentionParams& attend, const DeviceTap& tap, cudaStream_t stream);

struct DeviceExpectedScores {
  Rows samples;  // [samples, heads * query_dim], not turned
  uint32_t heads = 0;
  PagedRows rows;
  KvFormat key_format = KvFormat::bf16, value_format = KvFormat::bf16;
  const uint32_t* page_ids = nullptr;  // of the run
  uint32_t row_count = 0;
  float scale = 1;
  Rows scores;               // [heads, rows]
  Rows value_norms;          // [kv_heads, rows]
  float* moments = nullptr;  // moments_bytes
};
size_t moments_bytes(uint32_t heads, uint32_t query_dim);

// REQUIRES: the rows are stored; queries of at most kMostLatentDim.
void expected_scores(const DeviceExpectedScores& params, cudaStream_t stream);

}  // namespace quire::cuda
