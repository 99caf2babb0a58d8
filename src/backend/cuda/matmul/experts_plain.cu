#include "backend/cuda/matmul/expert_kernels.h"
#include "backend/cuda/matmul/plain_product.cuh"

namespace quire::cuda {
namespace {

struct ExpertPlainArguments {
  const uint32_t* item_count;
  const ExpertItem* items;
  size_t expert_bytes;
  PlainArguments product;  // of the first expert and item
};

// Blocks past the last item have nothing to do: the host does not know how many there are.
template <WeightFormat kFormat, class Output>
__global__ void __launch_bounds__(128, 2)
    experts_plain(const ExpertPlainArguments args, const Output output) {
  ptx::follow_kernel_before();
  const uint32_t index = blockIdx.x / args.product.tiles;
  if (index >= *args.item_count) return;
  const ExpertItem item = args.items[index];
  PlainArguments product = args.product;
  product.weight += item.expert * args.expert_bytes;
  product.activations += size_t(item.first) * product.blocks * kBlockK * 2;
  product.tokens = item.count;
  plain_tile<kFormat, kPlainItemTokens / 8>(product, blockIdx.x % product.tiles, 0, output.of(item));
}

}  // namespace

template <WeightFormat kFormat, class Output>
void launch_experts_plain(const ExpertCall<Output>& call) {
  CHECK(call.item_tokens <= kPlainItemTokens);
  const WeightShape& shape = call.stack.shape;
  const KPlan k = shape.k_plan();
  const ExpertPlainArguments args = {call.item_count,
                                     call.items,
                                     shape.bytes(),
                                     {call.stack.data, call.activations, 0, shape.rows, shape.tiles(),
                                      shape.blocks(), k.slice_blocks, nullptr}};
  launch(experts_plain<kFormat, Output>, {call.most_items * shape.tiles(), k.slices * 32},
         overlap_on(call.device), call.stream, args, call.output);
}

#define QUIRE_INSTANTIATE(format)                                                            \
  template void launch_experts_plain<WeightFormat::format>(const ExpertCall<ExpertHidden>&); \
  template void launch_experts_plain<WeightFormat::format>(const ExpertCall<ExpertRows>&);
QUIRE_INSTANTIATE(bf16)
QUIRE_INSTANTIATE(q8_0)
QUIRE_INSTANTIATE(q4_0)
QUIRE_INSTANTIATE(q4_k)
QUIRE_INSTANTIATE(q6_k)
QUIRE_INSTANTIATE(mxfp4)

}  // namespace quire::cuda
