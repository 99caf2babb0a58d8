// Compiled for AVX2, so nothing here may be inlined elsewhere.
#if defined(__x86_64__)

#include "backend/cpu/recurrence.h"

#include "backend/cpu/avx2/avx2_kernels.h"

namespace quire {

void use_avx2_recurrences(CpuKernels& kernels) {
  use_own_recurrences(kernels);
}

}  // namespace quire

#endif
