#include "backend/cuda/step_upload.h"

namespace quire::cuda {

void StepUpload::send(PinnedMemory& pinned, cudaStream_t stream) {
  if (memory_.bytes() < bytes_.size()) {
    CUDA_CHECK(cudaStreamSynchronize(stream));
    memory_ = DeviceBuffer(2 * bytes_.size());
  }
  source_ = pinned.take(bytes_.size());
  std::memcpy(source_.get(), bytes_.data(), bytes_.size());
  CUDA_CHECK(cudaMemcpyAsync(memory_.data(), source_.get(), bytes_.size(), cudaMemcpyHostToDevice, stream));
}

}  // namespace quire::cuda
