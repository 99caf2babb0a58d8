#pragma once

#include <cstddef>

#include "backend/backend.h"

namespace quire {

// out = norm(in); out may be in. The weights, where it has any, are those from `first_weight` on.
void norm_row(const Norm& norm, const float* in, float* out, size_t width, size_t first_weight = 0);

// Turns pairs of values, in place: (a, b) by an angle each.
void rotate_pairs(float* values, const float* cos, const float* sin, size_t pairs, RopePairing pairing);

}  // namespace quire
