#include "backend/cpu/nonlinearity.h"

#include <algorithm>
#include <cmath>

namespace quire {
namespace {

float silu(float x) {
  return x / (1.0f + std::exp(-x));
}

float gelu_tanh(float x) {
  constexpr float kSqrt2OverPi = 0.7978845608028654f;
  return 0.5f * x * (1.0f + std::tanh(kSqrt2OverPi * (x + 0.044715f * x * x * x)));
}

float gelu_erf(float x) {
  return 0.5f * x * (1.0f + std::erf(x * 0.7071067811865476f));
}

template <class F>
void apply(F f, const float* gate, const float* up, float* out, size_t count) {
  if (up == nullptr) {
    for (size_t i = 0; i < count; ++i) out[i] = f(gate[i]);
  } else {
    for (size_t i = 0; i < count; ++i) out[i] = f(gate[i]) * up[i];
  }
}

}  // namespace

void activate_row(const Gate& function, const float* gate, const float* up, float* out, size_t count) {
  switch (function.kind) {
    case Nonlinearity::silu:
      return apply(silu, gate, up, out, count);
    case Nonlinearity::gelu_tanh:
      return apply(gelu_tanh, gate, up, out, count);
    case Nonlinearity::gelu_erf:
      return apply(gelu_erf, gate, up, out, count);
    case Nonlinearity::clamped_swiglu: {
      for (size_t i = 0; i < count; ++i) {
        const float g = std::min(gate[i], function.limit);
        const float u = std::clamp(up[i], -function.limit, function.limit);
        out[i] = g / (1.0f + std::exp(-function.slope * g)) * (u + 1.0f);
      }
      return;
    }
  }
}

}  // namespace quire
