#pragma once

#include "backend/cuda/launch.cuh"
#include "backend/cuda/matmul/product_plan.h"
#include "backend/cuda/ptx.cuh"

// Kernels of every architecture in a chain of dependent launches, which sm_90 and later know (ptx::follow_kernel_before).

namespace quire::cuda {

inline Overlap overlap_on(const DeviceTraits& device) {
  return device.capability >= 90 ? Overlap::with_kernel_before : Overlap::none;
}

}  // namespace quire::cuda
