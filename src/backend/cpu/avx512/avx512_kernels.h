#pragma once

#include "backend/cpu/kernels.h"

namespace quire {

// AVX-512 (F, BW, DQ, VL) with VNNI. REQUIRES: the CPU has them. Formats that it does not speed up keep what `kernels`
// has.
void use_avx512(CpuKernels& kernels);

}  // namespace quire
