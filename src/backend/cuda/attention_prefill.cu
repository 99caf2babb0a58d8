#include <algorithm>

#include "backend/cuda/attention_launch.h"
#include "backend/cuda/attention_prefill.cuh"
#include "backend/cuda/device_memory.h"
#include "backend/cuda/tensor_map.h"

namespace quire::cuda {
namespace {

// [tokens, kv_heads, group, head_dim]; a copy brings a tile's rows, all of one KV head.
CUtensorMap map_of_queries(const AttentionParams& params) {
  const uint64_t head_bytes = params.rows.key_dim * sizeof(uint16_t), group = params.group();
  return make_tensor_map({.data = params.query,
                          .sizes = {params.rows.key_dim, group, params.rows.kv_heads, params.query_rows},
                          .strides_bytes = {head_bytes, group * head_bytes, params.heads * head_bytes},
                          .box = {64, uint32_t(group), 1, tokens_of_tile(uint32_t(group))}});
}

template <class Number, int kHeadDim>
void launch(const AttentionParams& params, const PrefillArgs& args, cudaStream_t stream) {
  constexpr uint32_t kBytes = PrefillLayout<kHeadDim>::kSharedBytes;
  const auto kernel = prefill_attention<Number, kHeadDim>;
  CUDA_CHECK(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, kBytes));
  const uint32_t blocks = std::min(uint32_t(multiprocessors()), args.tile_count);
  kernel<<<blocks, kPrefillThreads, kBytes, stream>>>(map_of_queries(params),
                                                      map_of_pages(params.rows, args.box_rows), args);
  CUDA_CHECK(cudaGetLastError());
}

}  // namespace

bool has_fast_attention(const AttentionParams& params) {
  const PagedRows& rows = params.rows;
  return compute_capability() == 90 && params.key_format == params.value_format &&
         (params.key_format == KvFormat::bf16 || params.key_format == KvFormat::f16) &&
         params.numbers == numbers_of(params.key_format) && rows.key_dim == rows.value_dim &&
         (rows.key_dim == 64 || rows.key_dim == 128) && rows.page_tokens % 16 == 0 &&
         params.group() <= kMostGroup;
}

void launch_prefill_attention(const AttentionParams& params, const PrefillTile* tiles, uint32_t count,
                              const AttentionWorkspace& workspace, cudaStream_t stream) {
  CHECK(has_fast_attention(params));
  if (count == 0) return;
  const PrefillArgs args = {.page_ids = params.page_ids,
                            .tiles = tiles,
                            .tile_count = count,
                            .counter = workspace.tile_counter,
                            .heads = params.heads,
                            .group = HeadGroup(params.group()),
                            .window = params.window,
                            .page_tokens = params.rows.page_tokens,
                            .box_rows = box_rows_of(params.rows.page_tokens, kBlockKeys),
                            .scale = score_scale(params.scale, params.soft_cap),
                            .sinks = params.sinks,
                            .out = params.out,
                            .out_tokens = params.out_tokens,
                            .out_f32 = params.out_f32};
  const bool small = params.rows.key_dim == 64;
  if (params.numbers == HalfKind::bf16) {
    (small ? launch<Bf16, 64> : launch<Bf16, 128>)(params, args, stream);
  } else {
    (small ? launch<F16, 64> : launch<F16, 128>)(params, args, stream);
  }
}

}  // namespace quire::cuda
