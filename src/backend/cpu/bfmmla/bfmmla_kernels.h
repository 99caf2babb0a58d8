#pragma once

#include "backend/cpu/kernels.h"

namespace quire {

// bf16 weights by the bf16 matrix instruction of ARMv8.6. REQUIRES: the CPU has it.
void use_bfmmla(CpuKernels& kernels);

}  // namespace quire
