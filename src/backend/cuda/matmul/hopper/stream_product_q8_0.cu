#include "backend/cuda/matmul/hopper/stream_product.cuh"

namespace quire::cuda {

#define QUIRE_INSTANTIATE(Output) template void launch_stream<WeightFormat::q8_0>(const ProductCall<Output>&);
QUIRE_CUDA_OUTPUTS(QUIRE_INSTANTIATE)

}  // namespace quire::cuda
