#pragma once

#include "backend/cpu/kernels.h"

// Grouped weights as use_amx_grouped multiplies them, but with tiles and `vpermb` in plain code: for tests on machines that have
// AVX-512 with VNNI and no AMX.

namespace quire {

void use_plain_grouped(CpuKernels& kernels);

// Whether this thread holds tiles.
bool plain_grouped_tiles_are_configured();

}  // namespace quire
