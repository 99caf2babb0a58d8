#include "backend/cpu/kernels.h"

#if defined(__aarch64__)
#include <asm/hwcap.h>
#include <sys/auxv.h>

#include "backend/cpu/neon/neon_kernels.h"
#endif

namespace quire {

std::vector<CpuKernels> present_kernels() {
  std::vector<CpuKernels> sets = {scalar_kernels()};
#if defined(__aarch64__)
  if ((getauxval(AT_HWCAP) & HWCAP_ASIMDDP) != 0) {
    sets.push_back(scalar_kernels());
    use_neon_dot(sets.back());
  }
#endif
  return sets;
}

CpuKernels best_kernels() {
  return present_kernels().back();
}

}  // namespace quire
