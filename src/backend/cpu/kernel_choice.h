#pragma once

#include <string>

#include "backend/cpu/kernels.h"

namespace quire {

// The kernel set of that name: "auto" is the fastest this machine can run. An unknown name throws Error.
CpuKernels kernels_named(const std::string& name);

}  // namespace quire
