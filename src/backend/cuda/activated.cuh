#pragma once

#include "backend/backend.h"
#include "backend/cuda/device_math.h"

// The nonlinearities: the CPU's operations in the CPU's order (nonlinearity.cc).

namespace quire::cuda {

__device__ __forceinline__ float silu(float x) {
  return x / (1.0f + exp_of(-x));
}

__device__ __forceinline__ float gelu_tanh(float x) {
  constexpr float kSqrt2OverPi = 0.7978845608028654f;
  const float inner = kSqrt2OverPi * (x + 0.044715f * x * x * x);
  const float tanh = 1.0f - 2.0f / (exp_of(inner + inner) + 1.0f);
  return 0.5f * x * (1.0f + tanh);
}

__device__ __forceinline__ float gelu_erf(float x) {
  return 0.5f * x * (1.0f + erff(x * 0.7071067811865476f));
}

__device__ __forceinline__ float clamped_swiglu(float gate, float up, const Gate& function) {
  const float g = fminf(gate, function.limit);
  const float u = fminf(fmaxf(up, -function.limit), function.limit);
  return g / (1.0f + exp_of(-function.slope * g)) * (u + 1.0f);
}

__device__ __forceinline__ float xielu(float x, const Gate& function) {
  const float below = (expm1f(fminf(x, -1e-6f)) - x) * function.slope;
  return (x > 0 ? function.limit * x * x : below) + 0.5f * x;
}

// f(gate) * up, or f(gate) where there is no up.
__device__ __forceinline__ float activated(const Gate& function, float gate, const float* up) {
  float value = 0;
  switch (function.kind) {
    case Nonlinearity::silu:
      value = silu(gate);
      break;
    case Nonlinearity::gelu_tanh:
      value = gelu_tanh(gate);
      break;
    case Nonlinearity::gelu_erf:
      value = gelu_erf(gate);
      break;
    case Nonlinearity::clamped_swiglu:
      return clamped_swiglu(gate, *up, function);
    case Nonlinearity::limited_silu:  // refused before (KernelLimits::all_gates), as it is the CPU's so far
      return silu(fminf(gate, function.limit)) * fminf(fmaxf(*up, -function.limit), function.limit);
    case Nonlinearity::xielu:
      value = xielu(gate, function);
      break;
    case Nonlinearity::sigmoid:
      value = 1.0f / (1.0f + exp_of(-gate));
      break;
    case Nonlinearity::squared_relu: {
      const float above = gate > 0 ? gate : gate == gate ? 0.0f : gate;
      value = above * above;
      break;
    }
    case Nonlinearity::softplus:
      value = fmaxf(gate, 0.0f) + log1pf(expf(-fabsf(gate)));
      break;
    case Nonlinearity::product:
      value = gate;
      break;
  }
  return up == nullptr ? value : value * *up;
}

}  // namespace quire::cuda
