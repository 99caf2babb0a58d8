#include <algorithm>

#include "backend/cuda/attention/attention_decode.cuh"
#include "backend/cuda/attention/attention_launch.h"
#include "backend/cuda/launch.cuh"
#include "backend/cuda/matmul/product_plan.h"
#include "backend/cuda/matmul/tensor_map.h"

namespace quire::cuda {
namespace {

template <class Sides, int kHeadDim, int kColumnTiles>
void launch_units(const DecodeArgs& args, cudaStream_t stream) {
  constexpr uint32_t kBytes = DecodeLayout<kHeadDim, kColumnTiles>::kSharedBytes;
  static_assert(kBytes <= 115'712, "two blocks fit a multiprocessor");
  const unsigned blocks = std::min(unsigned(2 * multiprocessors()), args.unit_count * args.kv_heads);
  launch(decode_attention<Sides, kHeadDim, kColumnTiles>,
         {.blocks = blocks, .threads = kDecodeThreads, .shared_bytes = kBytes}, Overlap::with_kernel_before,
         stream, map_of_keys(args.rows, args.key_format, args.box_rows),
         map_of_values(args.rows, args.value_format, args.box_rows), args);
}

template <int kHeadDim, int kColumnTiles>
void launch_columns(const DecodeArgs& args, cudaStream_t stream) {
  const bool alike = args.key_format == args.value_format;
  (alike && args.key_format == KvFormat::bf16
       ? launch_units<HalfSides<Bf16, kHeadDim>, kHeadDim, kColumnTiles>
   : alike && args.key_format == KvFormat::f16
       ? launch_units<HalfSides<F16, kHeadDim>, kHeadDim, kColumnTiles>
       : launch_units<AnySides<kHeadDim>, kHeadDim, kColumnTiles>)(args, stream);
}

template <int kHeadDim>
void launch_for(const DecodeArgs& args, uint32_t merge_count, cudaStream_t stream) {
  (args.columns <= 8 ? launch_columns<kHeadDim, 1> : launch_columns<kHeadDim, 2>)(args, stream);
  if (merge_count == 0) return;
  launch(merge_splits<kHeadDim>, {.blocks = merge_count * args.kv_heads * args.columns, .threads = kHeadDim},
         Overlap::with_kernel_before, stream, args);
}

// The kernel that follows may fetch its weights meanwhile, if only one of its blocks fits a multiprocessor. Two would meet on some
// while this kernel has others, and so would those of all products after it: with 16 sequences that doubles the time of a step.
bool next_comes_early(const AttentionParams& params, const DecodeWork& work) {
  return params.out_tokens > kStreamTokens && work.merge_count == 0;
}

}  // namespace

void launch_decode_attention(const AttentionParams& params, const DecodeWork& work,
                             const AttentionWorkspace& workspace, cudaStream_t stream) {
  if (work.unit_count == 0) return;
  CHECK(has_fast_attention(params) && work.columns <= kDecodeColumns && params.group() <= work.columns);
  const DecodeArgs args = {.query = params.query,
                           .page_ids = params.page_ids,
                           .units = work.units,
                           .unit_count = work.unit_count,
                           .merges = work.merges,
                           .heads = params.heads,
                           .kv_heads = params.rows.kv_heads,
                           .group = HeadGroup(params.group()),
                           .columns = work.columns,
                           .window = params.window,
                           .page_tokens = params.rows.page_tokens,
                           .box_rows = box_rows_of(params.rows.page_tokens, kChunkKeys),
                           .rows = params.rows,
                           .key_format = params.key_format,
                           .value_format = params.value_format,
                           .key_row_bytes = uint32_t(params.rows.key_row_bytes),
                           .value_row_bytes = uint32_t(params.rows.value_row_bytes),
                           .scale = score_scale(params.scale, params.soft_cap),
                           .sinks = params.sinks,
                           .partials = workspace.partials,
                           .merge_counters = workspace.merge_counters,
                           .next_comes_early = next_comes_early(params, work),
                           .out = params.out,
                           .out_tokens = params.out_tokens,
                           .out_f32 = params.out_f32};
  (params.rows.key_dim == 64 ? launch_for<64> : launch_for<128>)(args, work.merge_count, stream);
}

}  // namespace quire::cuda
