#pragma once

#include "backend/cpu/kernels.h"

namespace quire {

// The int8 tiles of AMX. REQUIRES: may_use_int8_tiles(), and `kernels` is the set of use_avx512, whose panels it reads
// and whose products it keeps for few tokens.
void use_amx(CpuKernels& kernels);
// Grouped weights (grouped_weights.h) by these tiles: the set's own arithmetic. REQUIRES: `kernels` is that of use_amx; the CPU has
// VBMI.
void use_amx_grouped(CpuKernels& kernels);
// Its bf16 tiles, for bf16 weights and pages of bf16. REQUIRES: may_use_bf16_tiles().
void use_amx_bf16(CpuKernels& kernels);

void attend_amx(const AttendArgs& args);

}  // namespace quire
