// Compiled for AVX2, so nothing here may be inlined elsewhere.
#if defined(__x86_64__)

#include "backend/cpu/delta_rule.h"

#include "backend/cpu/avx2/avx2_kernels.h"

namespace quire {

void use_avx2_delta_rule(CpuKernels& kernels) {
  kernels.delta_rule = run_delta_rule;
}

}  // namespace quire

#endif
