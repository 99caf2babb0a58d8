#pragma once

#include "backend/cpu/attention/attend.h"
#include "backend/cpu/kernels.h"

namespace quire {

// AVX-512 (F, BW, DQ, VL) with VNNI. REQUIRES: the CPU has them. Formats that it does not speed up keep what `kernels`
// has.
void use_avx512(CpuKernels& kernels);
// Of these, the weights that are not quantized.
void use_avx512_floats(CpuKernels& kernels);
// And what is done to rows between the products.
void use_avx512_rows(CpuKernels& kernels);
void use_avx512_recurrences(CpuKernels& kernels);
void attend_avx512(const AttendArgs& args);

// Its product of a format's panels, for sets that have no better one for few tokens.
template <class Format, ActivationForm kForm>
void matmul_vnni(const MatmulArgs& args);

}  // namespace quire
