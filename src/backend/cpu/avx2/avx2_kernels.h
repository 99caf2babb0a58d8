#pragma once

#include "backend/cpu/attention/attend.h"
#include "backend/cpu/kernels.h"

namespace quire {

// AVX2 with FMA and F16C. REQUIRES: the CPU has them. Formats that it does not speed up keep what `kernels` has.
void use_avx2(CpuKernels& kernels);
// Of these, the weights that are not quantized.
void use_avx2_floats(CpuKernels& kernels);
// And what recurrent layers need.
void use_avx2_recurrences(CpuKernels& kernels);
void attend_avx2(const AttendArgs& args);

}  // namespace quire
