#pragma once

#include <utility>

#include <cuda_runtime.h>

#include "backend/cuda/device_memory.h"

namespace quire::cuda {

struct LaunchShape {
  unsigned blocks;
  unsigned threads;
  unsigned shared_bytes = 0;
};

// Whether a kernel may start while the one before it in its stream still runs. It must then wait for it
// (ptx::wait_for_kernel_before) before it touches anything that others write.
enum class Overlap { none, with_kernel_before };

// Launches and throws Error if that fails; what the kernel itself does wrong shows later, at a wait.
template <class... Parameters, class... Arguments>
void launch(void (*kernel)(Parameters...), const LaunchShape& shape, Overlap overlap, cudaStream_t stream,
            Arguments&&... arguments) {
  if (shape.shared_bytes > 48 * 1024) {
    CUDA_CHECK(
        cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, int(shape.shared_bytes)));
  }
  cudaLaunchAttribute attribute = {};
  attribute.id = cudaLaunchAttributeProgrammaticStreamSerialization;
  attribute.val.programmaticStreamSerializationAllowed = 1;
  cudaLaunchConfig_t config = {};
  config.gridDim = dim3(shape.blocks);
  config.blockDim = dim3(shape.threads);
  config.dynamicSmemBytes = shape.shared_bytes;
  config.stream = stream;
  config.attrs = &attribute;
  config.numAttrs = overlap == Overlap::with_kernel_before && compute_capability() >= 90 ? 1 : 0;
  CUDA_CHECK(cudaLaunchKernelEx(&config, kernel, Parameters(std::forward<Arguments>(arguments))...));
}

}  // namespace quire::cuda
