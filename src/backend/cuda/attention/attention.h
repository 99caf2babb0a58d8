#pragma once

#include <cstdint>

#include <cuda_runtime_api.h>

#include "backend/cuda/attention/attention_plan.h"
#include "backend/cuda/attention/kv_row_numbers.h"
#include "backend/cuda/attention/paged_rows.h"
#include "backend/cuda/matmul/tensor_core_step.h"

// Attention over pages on the device, by the rule of attention_rule.h. Pointers are to device memory.

namespace quire::cuda {

struct AttentionParams {
  HalfKind numbers = HalfKind::bf16;  // of queries: numbers_of(key_format)
  KvFormat key_format = KvFormat::bf16, value_format = KvFormat::bf16;
  // [tokens, heads, query_dim]; turned if keys are, as rope_store leaves them. What meets values where keys go on in them has the numbers
  // of values, and is turned if these are.
  const uint16_t* query = nullptr;
  uint32_t query_rows = 0;  // tokens that there is memory for
  uint32_t heads = 0;
  PagedRows rows;
  const uint32_t* page_ids = nullptr;  // the tables of all runs
  uint32_t window = 0;
  float scale = 1;
  float soft_cap = 0;            // 0: none
  const float* sinks = nullptr;  // [heads], or null

  uint8_t* out =
      nullptr;  // activations (activation_layout.h) of heads * value_dim, but for their padding; or null
  uint32_t out_tokens = 0;   // that they are laid out for
  float* out_f32 = nullptr;  // the same before rounding, [tokens, heads, value_dim]; or null

  QUIRE_BOTH uint32_t group() const { return heads / rows.kv_heads; }
};

// Memory of a stream's launches.
struct AttentionWorkspace {
  float* partials = nullptr;  // decode_partial_bytes
  // Zero before the first launch; each launch leaves them so.
  uint32_t* tile_counter = nullptr;
  uint32_t* merge_counters = nullptr;  // [places, KV heads]
};

// What the fast kernels know, on the architecture that they need: heads of 64 and 128, keys and values alike, and pages in every
// format but f32, for keys and values apart. The rest takes the general kernel.
bool has_fast_attention(const AttentionParams& params);

// The tiles of a plan: many tokens of a run. Fast kernel.
void launch_prefill_attention(const AttentionParams& params, const PrefillTile* tiles, uint32_t count,
                              const AttentionWorkspace& workspace, cudaStream_t stream);

// The units of a plan: few tokens of a run.
struct DecodeWork {
  const DecodeUnit* units = nullptr;
  uint32_t unit_count = 0;
  const uint32_t* merges = nullptr;
  uint32_t merge_count = 0;
  uint32_t columns = 0;  // the plan's, or more
};
// Fast kernels, which take part in programmatic dependent launches: of memory that the kernel before writes they read, before
// waiting for it, nothing but the work's lists and `page_ids`, which are older.
void launch_decode_attention(const AttentionParams& params, const DecodeWork& work,
                             const AttentionWorkspace& workspace, cudaStream_t stream);

// Whether rows begin at addresses that the general kernel can read from, as those of pages of 16 tokens and more do.
bool has_aligned_rows(const AttentionParams& params);

// The same for every architecture, format and head size (multiples of 8 up to 512, keys and values apart). Units may have up to
// kPrefillRows columns, and are not merged in place. Where keys go on in values: up to kMostLatentDim for both, of one KV head.
void launch_general_prefill(const AttentionParams& params, const PrefillTile* tiles, uint32_t count,
                            cudaStream_t stream);
void launch_general_units(const AttentionParams& params, const DecodeWork& work, float* partials,
                          cudaStream_t stream);

// A row of queries for the plain kernel.
struct PlainRow {
  uint32_t token, row, table;
};
// The rule written plainly, as what the others are compared with: slow. Writes out_f32.
void launch_plain_attention(const AttentionParams& params, const PlainRow* rows, uint32_t count,
                            cudaStream_t stream);

}  // namespace quire::cuda
