// Compiled for AVX-512, so nothing here may be inlined elsewhere.
#if defined(__x86_64__)

#include "backend/cpu/delta_rule.h"

#include "backend/cpu/avx512/avx512_kernels.h"

namespace quire {

void use_avx512_delta_rule(CpuKernels& kernels) {
  kernels.delta_rule = run_delta_rule;
}

}  // namespace quire

#endif
