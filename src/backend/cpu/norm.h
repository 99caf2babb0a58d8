#pragma once

#include <cstddef>

#include "backend/backend.h"

namespace quire {

// out = norm(in); out may be in for rms.
void norm_row(const Norm& norm, const float* in, float* out, size_t width);

}  // namespace quire
