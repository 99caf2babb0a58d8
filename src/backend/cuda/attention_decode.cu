#include "backend/cuda/attention_decode.cuh"
#include "backend/cuda/attention_launch.h"
#include "backend/cuda/launch.cuh"
#include "backend/cuda/tensor_map.h"

namespace quire::cuda {
namespace {

template <class Number, int kHeadDim, int kColumnTiles>
void launch_units(const CUtensorMap& pages, const DecodeArgs& args, cudaStream_t stream) {
  constexpr uint32_t kBytes = DecodeLayout<kHeadDim, kColumnTiles>::kSharedBytes;
  static_assert(kBytes <= 115'712, "two blocks fit a multiprocessor");
  launch(decode_attention<Number, kHeadDim, kColumnTiles>,
         {.blocks = unsigned(2 * multiprocessors()), .threads = kDecodeThreads, .shared_bytes = kBytes},
         Overlap::with_kernel_before, stream, pages, args);
}

template <class Number, int kHeadDim>
void launch_for(const AttentionParams& params, const DecodeArgs& args, uint32_t merge_count,
                cudaStream_t stream) {
  const CUtensorMap pages = map_of_pages(params.rows, args.box_rows);
  (args.columns <= 8 ? launch_units<Number, kHeadDim, 1> : launch_units<Number, kHeadDim, 2>)(pages, args,
                                                                                              stream);
  if (merge_count == 0) return;
  launch(merge_splits<kHeadDim>, {.blocks = merge_count * args.kv_heads * args.columns, .threads = kHeadDim},
         Overlap::with_kernel_before, stream, args);
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
                           .scale = score_scale(params.scale, params.soft_cap),
                           .sinks = params.sinks,
                           .partials = workspace.partials,
                           .out = params.out,
                           .out_tokens = params.out_tokens,
                           .out_f32 = params.out_f32};
  const bool small = params.rows.key_dim == 64;
  if (params.numbers == HalfKind::bf16) {
    (small ? launch_for<Bf16, 64> : launch_for<Bf16, 128>)(params, args, work.merge_count, stream);
  } else {
    (small ? launch_for<F16, 64> : launch_for<F16, 128>)(params, args, work.merge_count, stream);
  }
}

}  // namespace quire::cuda
