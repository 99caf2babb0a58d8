#include "backend/cuda/attention/attention.h"
#include "backend/cuda/attention/attention_plain.h"
#include "backend/cuda/device_memory.h"

namespace quire::cuda {
namespace {

// A block of threads shares the loops.
struct ThreadBlock {
  template <class Body>
  __device__ __forceinline__ void each(uint32_t count, const Body& body) const {
    for (uint32_t i = threadIdx.x; i < count; i += blockDim.x) body(i);
    __syncthreads();
  }
};

template <HalfKind key_kind, HalfKind value_kind>
__global__ void __launch_bounds__(kBlockKeys, 1)
    plain_attention(const AttentionParams params, const PlainRow* rows) {
  __shared__ PlainScratch scratch;
  const PlainRow row = rows[blockIdx.x / params.heads];
  const uint32_t head = blockIdx.x % params.heads;
  const size_t index = size_t(row.token) * params.heads + head;
  const PlainAttention attention = {.query = params.query + index * params.rows.query_dim(),
                                    .rows = params.rows,
                                    .key_format = params.key_format,
                                    .value_format = params.value_format,
                                    .page_ids = params.page_ids + row.table,
                                    .kv_head = head / params.group(),
                                    .row = row.row,
                                    .window = params.window,
                                    .scale = score_scale(params.scale, params.soft_cap),
                                    .sink = params.sinks == nullptr ? nullptr : params.sinks + head,
                                    .out = params.out_f32 + index * params.rows.value_dim};
  PlainRule<key_kind, value_kind>{attention}.attend(ThreadBlock(), scratch);
}

struct PlainKernels {
  template <HalfKind key_kind, HalfKind value_kind>
  auto of() const {
    return plain_attention<key_kind, value_kind>;
  }
};

}  // namespace

void launch_plain_attention(const AttentionParams& params, const PlainRow* rows, uint32_t count,
                            cudaStream_t stream) {
  CHECK(params.rows.value_dim <= kMostHeadDim && params.numbers == numbers_of(params.key_format));
  if (count == 0) return;
  const auto kernel = for_kinds(params.key_format, params.value_format, PlainKernels());
  kernel<<<count * params.heads, kBlockKeys, 0, stream>>>(params, rows);
  CUDA_CHECK(cudaGetLastError());
}

}  // namespace quire::cuda
