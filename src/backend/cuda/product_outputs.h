#pragma once

#include <cstddef>
#include <cstdint>

// What becomes of a product's numbers. A kernel finishes them while it holds them; the arithmetic is in epilogue.cuh.

namespace quire::cuda {

// out[token * stride + row] = y + bias[row]
struct StoreRows {
  float* out = nullptr;
  size_t stride = 0;
  const float* bias = nullptr;  // or none
};

}  // namespace quire::cuda
