#include "backend/cuda/tile_product.cuh"

namespace quire::cuda {

template void launch_tile<WeightFormat::q8_0>(const ProductCall<StoreRows>&);

}  // namespace quire::cuda
