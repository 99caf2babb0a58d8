#include "backend/cuda/matmul/hopper/expert_stream.cuh"
#include "backend/cuda/matmul/hopper/expert_tile.cuh"

namespace quire::cuda {

template void launch_experts_stream<WeightFormat::bf16>(const ExpertCall<ExpertHidden>&);
template void launch_experts_stream<WeightFormat::bf16>(const ExpertCall<ExpertRows>&);
template void launch_experts_tile<WeightFormat::bf16>(const ExpertCall<ExpertHidden>&);
template void launch_experts_tile<WeightFormat::bf16>(const ExpertCall<ExpertRows>&);

}  // namespace quire::cuda
