#pragma once

#include "backend/cpu/kernels.h"

namespace quire {

// bf16 weights and pages of bf16 by the bf16 matrix instruction of ARMv8.6. REQUIRES: the CPU has it, and dot products.
void use_bfmmla(CpuKernels& kernels);

void attend_bfmmla(const AttendArgs& args);

}  // namespace quire
