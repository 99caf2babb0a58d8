#include "backend/cuda/matmul/hopper/tile_product.cuh"

namespace quire::cuda {

#define QUIRE_INSTANTIATE(Output) template void launch_tile<WeightFormat::mxfp4>(const ProductCall<Output>&);
QUIRE_CUDA_OUTPUTS(QUIRE_INSTANTIATE)

}  // namespace quire::cuda
