#include <algorithm>
#include <type_traits>

#include "backend/cuda/attention/attention_launch.h"
#include "backend/cuda/attention/attention_plain.h"
#include "backend/cuda/attention/attention_prefill.cuh"
#include "backend/cuda/device_memory.h"
#include "backend/cuda/launch.cuh"
#include "backend/cuda/matmul/tensor_map.h"

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

uint32_t blocks_for(const PrefillArgs& args) {
  return std::min(uint32_t(multiprocessors()), args.tile_count);
}

template <class Number, int kHeadDim>
void launch_fetched(const AttentionParams& params, const PrefillArgs& args, cudaStream_t stream) {
  launch(prefill_attention<Number, Number, kHeadDim>,
         {.blocks = blocks_for(args),
          .threads = kPrefillThreads,
          .shared_bytes = PrefillLayout<kHeadDim>::kSharedBytes},
         Overlap::none, stream, map_of_queries(params),
         map_of_keys(args.rows, args.key_format, args.box_rows),
         map_of_values(args.rows, args.value_format, args.box_rows), args);
}

template <HalfKind kind>
using NumberOf = std::conditional_t<kind == HalfKind::bf16, Bf16, F16>;

template <int kHeadDim>
struct ConvertedLaunches {
  template <HalfKind key_kind, HalfKind value_kind>
  auto of() const {
    return +[](const AttentionParams& params, const PrefillArgs& args, cudaStream_t stream) {
      launch(prefill_converted_attention<NumberOf<key_kind>, NumberOf<value_kind>, kHeadDim>,
             {.blocks = blocks_for(args),
              .threads = kPrefillThreads,
              .shared_bytes = PrefillLayout<kHeadDim>::kSharedBytes},
             Overlap::none, stream, map_of_queries(params), args);
    };
  }
};

template <int kHeadDim>
void launch_for(const AttentionParams& params, const PrefillArgs& args, cudaStream_t stream) {
  if (params.key_format == params.value_format && params.key_format == KvFormat::bf16)
    return launch_fetched<Bf16, kHeadDim>(params, args, stream);
  if (params.key_format == params.value_format && params.key_format == KvFormat::f16)
    return launch_fetched<F16, kHeadDim>(params, args, stream);
  for_kinds(params.key_format, params.value_format, ConvertedLaunches<kHeadDim>())(params, args, stream);
}

// Codes of int8 are multiplied as parts of themselves; a power of two is put back where it changes no bit.
float units_of(KvFormat format) {
  return format == KvFormat::int8 ? kCodeUnits : 1.0f;
}

ScoreScale scale_with_units(const AttentionParams& params) {
  ScoreScale scale = score_scale(params.scale, params.soft_cap);
  (scale.into_cap > 0 ? scale.into_cap : scale.scale) *= units_of(params.key_format);
  return scale;
}

}  // namespace

bool has_fast_attention(const AttentionParams& params) {
  const PagedRows& rows = params.rows;
  return compute_capability() == 90 && params.key_format != KvFormat::f32 &&
         params.value_format != KvFormat::f32 && params.numbers == numbers_of(params.key_format) &&
         rows.key_dim == rows.value_dim && (rows.key_dim == 64 || rows.key_dim == 128) && !rows.key_goes_on &&
         rows.page_tokens % 16 == 0 && params.group() <= kMostGroup;
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
                            .rows = params.rows,
                            .key_format = params.key_format,
                            .value_format = params.value_format,
                            .value_units = units_of(params.value_format),
                            .scale = scale_with_units(params),
                            .sinks = params.sinks,
                            .out = params.out,
                            .out_tokens = params.out_tokens,
                            .out_f32 = params.out_f32};
  (params.rows.key_dim == 64 ? launch_for<64> : launch_for<128>)(params, args, stream);
}

}  // namespace quire::cuda
