#include "backend/cpu/kernel_choice.h"

#include "base/error.h"

namespace quire {

CpuKernels kernels_named(const std::string& name) {
  if (name == "exact") return exact_kernels();
  if (name == "scalar" || name == "auto") return scalar_kernels();
  throw Error("'{}' is not a kernel set; known are auto, scalar and exact", name);
}

}  // namespace quire
