#pragma once

#include "backend/cuda/launch.cuh"
#include "backend/cuda/matmul/product_plan.h"
#include "backend/cuda/matmul/ptx_hopper.cuh"

// Kernels of every architecture in a chain of dependent launches, which sm_90 and later know.

namespace quire::cuda {

inline Overlap overlap_on(const DeviceTraits& device) {
  return device.capability >= 90 ? Overlap::with_kernel_before : Overlap::none;
}

// The next kernel may start; this one goes on when the one before has ended. First thing in a kernel that has nothing to
// do before that.
__device__ __forceinline__ void follow_kernel_before() {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  ptx::launch_dependents();
  ptx::wait_for_kernel_before();
#endif
}

}  // namespace quire::cuda
