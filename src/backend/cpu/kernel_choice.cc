#include "backend/cpu/kernel_choice.h"

#include "base/error.h"

#if defined(__aarch64__)
#include <asm/hwcap.h>
#include <sys/auxv.h>

#include "backend/cpu/neon/neon_kernels.h"
#elif defined(__x86_64__)
#include "backend/cpu/avx2/avx2_kernels.h"
#endif

namespace quire {

std::vector<CpuKernels> present_kernels() {
  std::vector<CpuKernels> sets = {scalar_kernels()};
#if defined(__aarch64__)
  if ((getauxval(AT_HWCAP) & HWCAP_ASIMDDP) != 0) {
    sets.push_back(scalar_kernels());
    use_neon_dot(sets.back());
  }
#elif defined(__x86_64__)
  if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && __builtin_cpu_supports("f16c")) {
    sets.push_back(scalar_kernels());
    use_avx2(sets.back());
  }
#endif
  return sets;
}

CpuKernels kernels_named(const std::string& name) {
  const std::vector<CpuKernels> present = present_kernels();
  if (name == "auto") return present.back();
  if (name == "exact") return exact_kernels();
  std::string known = "auto, exact";
  for (const CpuKernels& kernels : present) {
    if (name == kernels.name) return kernels;
    known += std::string(", ") + kernels.name;
  }
  throw Error("this machine has no kernel set '{}'; it has {}", name, known);
}

std::vector<std::string> kernel_names() {
  std::vector<std::string> names = {"auto", "exact"};
  for (const CpuKernels& kernels : present_kernels()) names.push_back(kernels.name);
  return names;
}

}  // namespace quire
