#pragma once

#include "backend/cpu/kernels.h"

namespace quire {

// The int8 matrix instructions of ARMv8.6. REQUIRES: the CPU has them, and `kernels` is the set of use_neon_dot, whose
// panels it reads.
void use_i8mm(CpuKernels& kernels);

// Attention with the bf16 matrix instructions for pages of bf16. REQUIRES: the CPU has them, and dot products.
void attend_neon_bf16(const AttendArgs& args);

}  // namespace quire
