#pragma once

#include <string>
#include <vector>

#include "backend/cpu/kernels.h"

namespace quire {

// Every kernel set that this machine can run: the scalar twin first, the fastest last.
std::vector<CpuKernels> present_kernels();

// The kernel set of that name: "auto" is the fastest of them, "exact" the reference, "grouped" what sets with
// tiles of int8 compute, in plain code. An unknown name throws Error.
CpuKernels kernels_named(const std::string& name);

// What kernels_named knows here.
std::vector<std::string> kernel_names();

}  // namespace quire
