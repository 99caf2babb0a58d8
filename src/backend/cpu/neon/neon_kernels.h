#pragma once

#include "backend/cpu/kernels.h"

namespace quire {

// NEON as every arm64 has it: the weights that are not quantized.
void use_neon(CpuKernels& kernels);

// NEON with the dot-product instructions (ARMv8.2). REQUIRES: the CPU has them. Formats that it does not speed up keep
// what `kernels` has.
void use_neon_dot(CpuKernels& kernels);
void attend_neon_dot(const AttendArgs& args);

// Its product of a format's panels, for sets that have no better one for few tokens.
template <class Format, ActivationForm kForm>
void matmul_dot(const MatmulArgs& args);

}  // namespace quire
