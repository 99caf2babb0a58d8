#pragma once

#include "backend/cpu/kernels.h"

// Types in blocks of 256 as use_amx multiplies them, but with tiles in plain code: for tests on machines that have AVX-512 with VNNI
// and no AMX.

namespace quire {

// REQUIRES: the CPU has AVX-512 with VNNI.
void use_plain_folded(CpuKernels& kernels);

// Whether this thread holds tiles.
bool plain_folded_tiles_are_configured();

}  // namespace quire
