#pragma once

#include "backend/cpu/kernels.h"

namespace quire {

// The int8 matrix instructions of ARMv8.6. REQUIRES: the CPU has them, and `kernels` is the set of use_neon_dot, whose
// panels it reads.
void use_i8mm(CpuKernels& kernels);

// With up to kMostDirect tokens, for formats that have panels of pairs.
inline constexpr size_t kMostDirect = 4;
template <class Format, ActivationForm kForm>
void matmul_pairs(const MatmulArgs& args);

}  // namespace quire
