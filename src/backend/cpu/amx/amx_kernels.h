#pragma once

#include "backend/cpu/kernels.h"

namespace quire {

// The int8 tiles of AMX: grouped weights (grouped_weights.h), which is an arithmetic of its own; types in blocks of 256 are multiplied as
// all sets do it. REQUIRES: may_use_int8_tiles(), the CPU has VBMI, and `kernels` is the set of use_avx512, some of whose panels it reads
// and whose products it keeps where these have few tokens.
void use_amx(CpuKernels& kernels);
void use_amx_grouped(CpuKernels& kernels);  // its grouped part
// Its bf16 tiles, for bf16 weights and pages of bf16. REQUIRES: may_use_bf16_tiles().
void use_amx_bf16(CpuKernels& kernels);

void attend_amx(const AttendArgs& args);

}  // namespace quire
