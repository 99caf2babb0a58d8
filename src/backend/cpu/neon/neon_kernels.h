#pragma once

#include "backend/cpu/kernels.h"
#include "backend/cpu/matmul/stream_fetch.h"

namespace quire {

// NEON as every arm64 has it: the weights that are not quantized.
void use_neon(CpuKernels& kernels);

// NEON with the dot-product instructions (ARMv8.2). REQUIRES: the CPU has them. Formats that it does not speed up keep
// what `kernels` has.
void use_neon_dot(CpuKernels& kernels);
void attend_neon_dot(const AttendArgs& args);

// The same with another hint (see stream_fetch.h), for sets that have nothing better: floats, attention, and the product of a
// format's panels with few tokens.
void use_neon_far_floats(CpuKernels& kernels);
void attend_neon_dot_far(const AttendArgs& args);
template <class Format, ActivationForm kForm, class Fetch>
void matmul_dot(const MatmulArgs& args);

}  // namespace quire
