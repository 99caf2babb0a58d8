#pragma once

#include <cstddef>
#include <cstdint>

// What becomes of a product's numbers y (token, row). A kernel finishes them while it holds them; the arithmetic is in
// epilogue.cuh. All pointers are the device's.
//
// An RMS norm takes no kernel of its own. The product that adds to the residual also writes the next product's
// activations times the norm's gain, and the squares of 16 numbers summed; the next product multiplies its result
// with the token's scale, 1 / sqrt(mean of squares + epsilon).

namespace quire::cuda {

// Of tokens of the step: sums of squares [token, count] that AddToResidual wrote.
struct TokenScales {
  const float* squares = nullptr;
  uint32_t count = 0;
  uint32_t width = 0;  // numbers that were squared: count * 16 or less
  float epsilon = 0;
};

// Activations for a product of `cols` columns, activation_bytes(tokens, cols) of them.
struct NextActivations {
  uint8_t* data = nullptr;
  uint32_t tokens = 0;
  uint32_t cols = 0;
};

// out[token * stride + row] = y + bias[row]
struct StoreRows {
  static constexpr bool kScaled = false;
  float* out = nullptr;
  size_t stride = 0;
  const float* bias = nullptr;  // or none
};

// out[token * stride + row] = y * scale: logits
struct ScaledRows {
  static constexpr bool kScaled = true;
  TokenScales scales;
  float* out = nullptr;
  size_t stride = 0;
};

// residual += y; next = residual * gain[row]; squares[token, row / 16] = sum of residual^2
struct AddToResidual {
  static constexpr bool kScaled = false;
  float* residual = nullptr;
  size_t stride = 0;
  const float* gain = nullptr;
  NextActivations next;  // of `rows` columns
  float* squares = nullptr;
  uint32_t square_count = 0;  // rows / 16, rounded up
};

// Rows alternate (interleaved_halves): gate, up, gate, ... next[row / 2] = silu(gate * scale) * (up * scale)
struct GatedUnit {
  static constexpr bool kScaled = true;
  TokenScales scales;
  NextActivations next;  // of rows / 2 columns
};

// Rows of heads, of which rows [0, rotated_rows) are turned pair by pair: rows 2i and 2i+1 of a head by
// angles[token, i], a cosine and a sine. out[token * stride + row], bf16
struct RotatedHeads {
  static constexpr bool kScaled = true;
  TokenScales scales;
  const float* angles = nullptr;  // [token, head_rows / 2, 2]
  uint32_t head_rows = 0;
  uint32_t rotated_rows = 0;
  uint16_t* out = nullptr;
  size_t stride = 0;
};

}  // namespace quire::cuda

// For the explicit instantiations of kernels: X(type) for each of them.
#define QUIRE_CUDA_OUTPUTS(X) X(StoreRows) X(ScaledRows) X(AddToResidual) X(GatedUnit) X(RotatedHeads)
