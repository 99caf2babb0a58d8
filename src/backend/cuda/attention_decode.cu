#include "backend/cuda/attention_decode.cuh"
#include "backend/cuda/attention_launch.h"
#include "backend/cuda/device_memory.h"
#include "backend/cuda/tensor_map.h"

namespace quire::cuda {
namespace {

template <class Number, int kHeadDim, int kColumnTiles>
void launch(const CUtensorMap& pages, const DecodeArgs& args, cudaStream_t stream) {
  using Layout = DecodeLayout<kHeadDim, kColumnTiles>;
  static_assert(Layout::kSharedBytes <= 115'712, "two blocks fit a multiprocessor");
  const auto kernel = decode_attention<Number, kHeadDim, kColumnTiles>;
  CUDA_CHECK(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, Layout::kSharedBytes));
  cudaLaunchAttribute dependent = {};
  dependent.id = cudaLaunchAttributeProgrammaticStreamSerialization;
  dependent.val.programmaticStreamSerializationAllowed = 1;
  cudaLaunchConfig_t config = {};
  config.gridDim = uint32_t(2 * multiprocessors());
  config.blockDim = kDecodeThreads;
  config.dynamicSmemBytes = Layout::kSharedBytes;
  config.stream = stream;
  config.attrs = &dependent;
  config.numAttrs = 1;
  CUDA_CHECK(cudaLaunchKernelEx(&config, kernel, pages, args));
}

template <class Number, int kHeadDim>
void launch_for(uint32_t columns, const CUtensorMap& pages, const DecodeArgs& args, cudaStream_t stream) {
  if (columns <= 8) {
    launch<Number, kHeadDim, 1>(pages, args, stream);
  } else {
    launch<Number, kHeadDim, 2>(pages, args, stream);
  }
}

}  // namespace

void launch_decode_attention(const AttentionParams& params, const DecodeUnit* units, uint32_t count,
                             uint32_t columns, const AttentionWorkspace& workspace, cudaStream_t stream) {
  CHECK(has_fast_attention(params) && columns <= kDecodeColumns && params.group() <= columns);
  if (count == 0) return;
  const uint32_t box_rows = box_rows_of(params.rows.page_tokens, kChunkKeys);
  const DecodeArgs args = {.query = params.query,
                           .page_ids = params.page_ids,
                           .units = units,
                           .unit_count = count,
                           .heads = params.heads,
                           .kv_heads = params.rows.kv_heads,
                           .group = HeadGroup(params.group()),
                           .columns = columns,
                           .window = params.window,
                           .page_tokens = params.rows.page_tokens,
                           .box_rows = box_rows,
                           .scale = score_scale(params.scale, params.soft_cap),
                           .sinks = params.sinks,
                           .workspace = workspace,
                           .out = params.out,
                           .out_tokens = params.out_tokens,
                           .out_f32 = params.out_f32};
  const CUtensorMap pages = map_of_pages(params.rows, box_rows);
  const bool small = params.rows.key_dim == 64;
  if (params.numbers == HalfKind::bf16) {
    (small ? launch_for<Bf16, 64> : launch_for<Bf16, 128>)(columns, pages, args, stream);
  } else {
    (small ? launch_for<F16, 64> : launch_for<F16, 128>)(columns, pages, args, stream);
  }
}

}  // namespace quire::cuda
