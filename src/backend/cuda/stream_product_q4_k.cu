#include "backend/cuda/stream_product.cuh"

namespace quire::cuda {

template void launch_stream<WeightFormat::q4_k>(const ProductCall<StoreRows>&);

}  // namespace quire::cuda
