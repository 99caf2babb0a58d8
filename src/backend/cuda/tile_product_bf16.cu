#include "backend/cuda/tile_product.cuh"

namespace quire::cuda {

template void launch_tile<WeightFormat::bf16>(const ProductCall<StoreRows>&);

}  // namespace quire::cuda
