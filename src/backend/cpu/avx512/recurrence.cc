// Compiled for AVX-512, so nothing here may be inlined elsewhere.
#if defined(__x86_64__)

#include "backend/cpu/recurrence.h"

#include "backend/cpu/avx512/avx512_kernels.h"

namespace quire {

void use_avx512_recurrences(CpuKernels& kernels) {
  use_own_recurrences(kernels);
}

}  // namespace quire

#endif
