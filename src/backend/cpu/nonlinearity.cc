#include "backend/cpu/nonlinearity.h"

#include <algorithm>
#include <cmath>

#include "backend/cpu/vector_math.h"

namespace quire {
namespace {

constexpr float kXieluLeast = -1e-6f;  // what its exponent is at most

F32x4 silu(F32x4 x) {
  return x / (all4(1.0f) + exp4(-x));
}

// tanh(y) = 1 - 2 / (e^2y + 1)
F32x4 gelu_tanh(F32x4 x) {
  constexpr float kSqrt2OverPi = 0.7978845608028654f;
  const F32x4 inner = all4(kSqrt2OverPi) * (x + all4(0.044715f) * x * x * x);
  const F32x4 tanh = all4(1.0f) - all4(2.0f) / (exp4(inner + inner) + all4(1.0f));
  return all4(0.5f) * x * (all4(1.0f) + tanh);
}

F32x4 gelu_erf(F32x4 x) {
  F32x4 erf;
  for (int i = 0; i < 4; ++i) erf[i] = std::erf(x[i] * 0.7071067811865476f);
  return all4(0.5f) * x * (all4(1.0f) + erf);
}

// f(gate), or f(gate) * up, four at a time; what is left at the end is computed in a vector of its own.
template <class F>
void apply(F f, const float* gate, const float* up, float* out, size_t count) {
  size_t i = 0;
  for (; i + 4 <= count; i += 4) {
    const F32x4 value = f(load4(gate + i));
    store4(up == nullptr ? value : value * load4(up + i), out + i);
  }
  for (; i < count; ++i) {
    const float value = f(all4(gate[i]))[0];
    out[i] = up == nullptr ? value : value * up[i];
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
    case Nonlinearity::sigmoid:
      return apply([](F32x4 x) { return all4(1.0f) / (all4(1.0f) + exp4(-x)); }, gate, up, out, count);
    case Nonlinearity::squared_relu:
      return apply(
          [](F32x4 x) {
            const F32x4 above = x > all4(0.0f) ? x : x == x ? all4(0.0f) : x;
            return above * above;
          },
          gate, up, out, count);
    case Nonlinearity::softplus:
      for (size_t i = 0; i < count; ++i) {
        const float value = std::max(gate[i], 0.0f) + std::log1p(std::exp(-std::fabs(gate[i])));
        out[i] = up == nullptr ? value : value * up[i];
      }
      return;
    case Nonlinearity::product:
      return apply([](F32x4 x) { return x; }, gate, up, out, count);
    case Nonlinearity::clamped_swiglu: {
      for (size_t i = 0; i < count; ++i) {
        const float g = std::min(gate[i], function.limit);
        const float u = std::clamp(up[i], -function.limit, function.limit);
        out[i] = g / (1.0f + std::exp(-function.slope * g)) * (u + 1.0f);
      }
      return;
    }
    case Nonlinearity::limited_silu: {
      const float limit = function.limit;
      const auto limited = [&](F32x4 g, F32x4 u) {
        g = all4(limit) < g ? all4(limit) : g;
        u = u < all4(-limit) ? all4(-limit) : all4(limit) < u ? all4(limit) : u;
        return silu(g) * u;
      };
      size_t i = 0;
      for (; i + 4 <= count; i += 4) store4(limited(load4(gate + i), load4(up + i)), out + i);
      for (; i < count; ++i) out[i] = limited(all4(gate[i]), all4(up[i]))[0];
      return;
    }
    case Nonlinearity::xielu: {
      for (size_t i = 0; i < count; ++i) {
        const float x = gate[i];
        const float below = (std::expm1(std::min(x, kXieluLeast)) - x) * function.slope;
        out[i] = (x > 0 ? function.limit * x * x : below) + 0.5f * x;
      }
      return;
    }
  }
}

}  // namespace quire
