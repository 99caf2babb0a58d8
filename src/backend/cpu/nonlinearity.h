#pragma once

#include <cstddef>

#include "backend/backend.h"

namespace quire {

// out = f(gate) * up, or f(gate) if `up` is null. out may be gate.
void activate_row(const Gate& function, const float* gate, const float* up, float* out, size_t count);

}  // namespace quire
