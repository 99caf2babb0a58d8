#pragma once

#include <cstddef>
#include <cstdint>

#include <cuda_runtime_api.h>

#include "backend/backend.h"
#include "backend/cuda/attention/attention_plan.h"
#include "backend/cuda/attention/paged_rows.h"

// The exact kernels on the device (`--kernels exact`): nothing is rounded below f32, sums are of doubles in an order that depends on
// their length alone. Slow and simple, for comparisons with the goldens. Pointers, those of Rows too, are to device memory.

namespace quire::cuda {

// out = weight in + bias.
struct ExactProduct {
  const float* weight = nullptr;  // [out, in]
  const float* bias = nullptr;    // [out], or null
  Rows in;                        // [tokens, in]
  Rows out;                       // [tokens, out]
};
void exact_product(const ExactProduct& params, cudaStream_t stream);

// As Backend::project_heads.
struct ExactHeads {
  Rows in;                        // [tokens, heads * (cols + rest)]
  const float* weight = nullptr;  // [heads * rows, cols]
  uint32_t heads = 0, rows = 0, cols = 0;
  Rows out;  // [tokens, heads * (rest + rows)]
};
void exact_heads(const ExactHeads& params, cudaStream_t stream);

// As Backend::project_experts.
struct ExactExperts {
  Rows in;                            // [tokens, dim]
  const uint32_t* experts = nullptr;  // [tokens, used]
  const float* shares = nullptr;      // [tokens, used]
  uint32_t used = 0;
  uint32_t expert_width = 0;
  const float *gate = nullptr, *up = nullptr, *down = nullptr;  // [experts * out, in]; or no gate
  const float *gate_bias = nullptr, *up_bias = nullptr, *down_bias = nullptr;  // [experts * out], or null
  Gate function;
  Rows out;                  // [tokens, dim]
  float* scratch = nullptr;  // exact_expert_bytes
};
size_t exact_expert_bytes(size_t tokens, size_t used, size_t expert_width, size_t dim);
void exact_experts(const ExactExperts& params, cudaStream_t stream);

// As Backend::attend, over pages of any format and heads of any size up to 512; where keys go on in values up to 640 for both.
struct ExactAttention {
  Rows query;  // [tokens, heads * query_dim], turned if keys are
  uint32_t heads = 0;
  PagedRows rows;
  KvFormat key_format = KvFormat::f32, value_format = KvFormat::f32;
  const uint32_t* page_ids = nullptr;      // the tables of all runs
  const uint32_t* token_rows = nullptr;    // by token: where its own key is
  const uint32_t* token_tables = nullptr;  // by token: where its sequence's table begins in page_ids
  uint32_t window = 0;
  float scale = 1;
  float soft_cap = 0;            // 0: none
  const float* sinks = nullptr;  // [heads], or null
  Rows out;                      // [tokens, heads * value_dim]
};
void exact_attention(const ExactAttention& params, cudaStream_t stream);

}  // namespace quire::cuda
