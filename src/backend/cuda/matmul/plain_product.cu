#include "backend/cuda/matmul/plain_product.cuh"
#include "backend/cuda/matmul/product_kernels.h"

namespace quire::cuda {
namespace {

template <WeightFormat kFormat, uint32_t kTokenTiles, class Output>
__global__ void __launch_bounds__(128, 3) plain_product(const PlainArguments args, const Output output) {
  ptx::follow_kernel_before();
  plain_tile<kFormat, kTokenTiles>(args, blockIdx.x % args.tiles, blockIdx.x / args.tiles * kTokenTiles * 8,
                                   output);
}

template <WeightFormat kFormat, uint32_t kTokenTiles, class Output>
void launch_plain_tiles(const ProductCall<Output>& call) {
  const WeightShape& shape = call.weight.shape;
  const KPlan k = shape.k_plan();
  const PlainArguments args = {call.weight.data, call.activations.data, call.activations.tokens,
                               shape.rows,       shape.tiles(),         shape.blocks(),
                               k.slice_blocks,   prepare_scales(call)};
  const uint32_t token_tiles = (args.tokens + kTokenTiles * 8 - 1) / (kTokenTiles * 8);
  launch(plain_product<kFormat, kTokenTiles, Output>, {args.tiles * token_tiles, k.slices * 32},
         overlap_on(call.workspace.device()), call.stream, args, call.output);
}

}  // namespace

template <WeightFormat kFormat, class Output>
void launch_plain(const ProductCall<Output>& call) {
  if (call.activations.tokens <= 8) {
    launch_plain_tiles<kFormat, 1>(call);
  } else {
    launch_plain_tiles<kFormat, 4>(call);
  }
}

#define QUIRE_INSTANTIATE(Output)                                             \
  template void launch_plain<WeightFormat::bf16>(const ProductCall<Output>&); \
  template void launch_plain<WeightFormat::q8_0>(const ProductCall<Output>&); \
  template void launch_plain<WeightFormat::q4_0>(const ProductCall<Output>&); \
  template void launch_plain<WeightFormat::q4_k>(const ProductCall<Output>&); \
  template void launch_plain<WeightFormat::q6_k>(const ProductCall<Output>&); \
  template void launch_plain<WeightFormat::mxfp4>(const ProductCall<Output>&);
QUIRE_CUDA_OUTPUTS(QUIRE_INSTANTIATE)

}  // namespace quire::cuda
