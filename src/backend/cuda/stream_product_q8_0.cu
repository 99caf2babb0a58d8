#include "backend/cuda/stream_product.cuh"

namespace quire::cuda {

template void launch_stream<WeightFormat::q8_0>(const ProductCall<StoreRows>&);

}  // namespace quire::cuda
