#include "backend/cuda/stream_product.cuh"

namespace quire::cuda {

template void launch_stream<WeightFormat::bf16>(const ProductCall<StoreRows>&);

}  // namespace quire::cuda
