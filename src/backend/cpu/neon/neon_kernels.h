#pragma once

#include "backend/cpu/kernels.h"

namespace quire {

// NEON with the dot-product instructions (ARMv8.2). REQUIRES: the CPU has them. Formats that it does not speed up keep
// what `kernels` has.
void use_neon_dot(CpuKernels& kernels);

}  // namespace quire
