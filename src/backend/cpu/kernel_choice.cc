#include "backend/cpu/kernel_choice.h"

#include "base/error.h"

#if defined(__aarch64__)
#include <asm/hwcap.h>
#include <sys/auxv.h>

#include "backend/cpu/bfmmla/bfmmla_kernels.h"
#include "backend/cpu/i8mm/i8mm_kernels.h"
#include "backend/cpu/neon/neon_kernels.h"
#elif defined(__x86_64__)
#include <cpuid.h>

#include "backend/cpu/amx/amx_kernels.h"
#include "backend/cpu/amx/tile_permission.h"
#include "backend/cpu/avx2/avx2_kernels.h"
#include "backend/cpu/avx512/avx512_kernels.h"
#endif

namespace quire {

#if defined(__x86_64__)
namespace {

bool has_avx2_set() {
  // f16c is asked of the CPU itself: Clang 14's __builtin_cpu_supports does not know it.
  unsigned a = 0, b = 0, c = 0, d = 0;
  const bool f16c = __get_cpuid(1, &a, &b, &c, &d) != 0 && (c & bit_F16C) != 0;
  return f16c && __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
}

bool has_avx512_set() {
  return has_avx2_set() && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
         __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl") &&
         __builtin_cpu_supports("avx512vnni");
}

}  // namespace
#endif

std::vector<CpuKernels> present_kernels() {
  std::vector<CpuKernels> sets = {scalar_kernels()};
#if defined(__aarch64__)
  sets.push_back(scalar_kernels());
  use_neon(sets.back());
  if ((getauxval(AT_HWCAP) & HWCAP_ASIMDDP) != 0) {
    sets.push_back(sets.back());
    use_neon_dot(sets.back());
    if ((getauxval(AT_HWCAP2) & HWCAP2_I8MM) != 0) {
      sets.push_back(sets.back());
      use_i8mm(sets.back());
      if ((getauxval(AT_HWCAP2) & HWCAP2_BF16) != 0) {
        use_bfmmla(sets.back());
        sets.back().pages = KvFormat::bf16;
      }
    }
  }
#elif defined(__x86_64__)
  if (has_avx2_set()) {
    sets.push_back(scalar_kernels());
    use_avx2(sets.back());
    use_avx2_recurrences(sets.back());
  }
  if (has_avx512_set()) {
    sets.push_back(scalar_kernels());
    use_avx512(sets.back());
    use_avx512_recurrences(sets.back());
    if (may_use_int8_tiles() && __builtin_cpu_supports("avx512vbmi")) {
      sets.push_back(sets.back());
      use_amx(sets.back());
      if (may_use_bf16_tiles()) {
        use_amx_bf16(sets.back());
        sets.back().pages = KvFormat::bf16;
      }
    }
  }
#endif
  return sets;
}

CpuKernels kernels_named(const std::string& name) {
  const std::vector<CpuKernels> present = present_kernels();
  if (name == "auto") return present.back();
  if (name == "exact") return exact_kernels();
  if (name == "grouped") return grouped_kernels();
  std::string known = "auto, exact, grouped";
  for (const CpuKernels& kernels : present) {
    if (name == kernels.name) return kernels;
    known += std::string(", ") + kernels.name;
  }
  throw Error("this machine has no kernel set '{}'; it has {}", name, known);
}

std::vector<std::string> kernel_names() {
  std::vector<std::string> names = {"auto", "exact", "grouped"};
  for (const CpuKernels& kernels : present_kernels()) names.push_back(kernels.name);
  return names;
}

}  // namespace quire
