#pragma once

#include <cstddef>
#include <cstdint>

#include "backend/backend.h"

// What becomes of a product's numbers y (token, row). A kernel finishes them while it holds them; the arithmetic is in
// epilogue.cuh. All pointers are the device's.
//
// An RMS norm takes no kernel of its own. The product that adds to the residual also writes the next product's
// activations times the norm's gain, and the squares of 16 numbers summed; the next product multiplies its result
// with the token's scale, 1 / sqrt(mean of squares + epsilon). Of few tokens Hopper's
// kernels compute the scales themselves (stream); of more, and elsewhere, a small kernel before them does
// (token_scales.h).

namespace quire::cuda {

// Of tokens of the step: sums of squares [token, count] that AddToResidual wrote. No squares: a scale of 1, and no
// kernel for it.
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
  float* out = nullptr;
  size_t stride = 0;
  const float* bias = nullptr;  // or none
};

// out[token * stride + row] = y * scale: logits
struct ScaledRows {
  TokenScales scales;
  float* out = nullptr;
  size_t stride = 0;
};

// Rows of a weight that go to a place of their own, counted from its first: out[token * stride + row] = y * scale +
// bias[row].
struct RowsPart {
  float* out = nullptr;
  size_t stride = 0;
  const float* bias = nullptr;  // or none
  uint32_t rows = 0;
};

// Up to three parts one after the other, such as queries, keys and values of one weight. REQUIRES: together they have the
// weight's rows; all but the last with rows have a multiple of 16.
struct StoreParts {
  static constexpr bool kScaled = true;
  TokenScales scales;  // or none
  RowsPart parts[3];
};

// residual += factor * (y + bias[row]); next = residual * gain[row]; squares[token, row / 16] = sum of residual^2
struct AddToResidual {
  static constexpr bool kScaled = false;
  float* residual = nullptr;
  size_t stride = 0;
  const float* gain = nullptr;
  NextActivations next;  // of `rows` columns
  float* squares = nullptr;
  uint32_t square_count = 0;    // rows / 16, rounded up
  const float* bias = nullptr;  // or none
  float factor = 1;
};

// Rows are those of gated_rows: eight gates, their eight ups, and so on. With gate = gate * scale + gate_bias and up alike, each
// of its column of the hidden layer, next[column] = function(gate) * up.
struct GatedUnit {
  static constexpr bool kScaled = true;
  TokenScales scales;    // or none
  NextActivations next;  // of rows / 2 columns, a multiple of 8
  Gate function = {};
  const float* gate_bias = nullptr;  // or none
  const float* up_bias = nullptr;    // or none
};

// The scales of an output, or null.
template <class Output>
constexpr const TokenScales* scales_of(const Output& output) {
  if constexpr (Output::kScaled) {
    if (output.scales.squares != nullptr) return &output.scales;
  }
  return nullptr;
}

}  // namespace quire::cuda

// For the explicit instantiations of kernels: X(type) for each of them. StoreRows and ScaledRows are StoreParts of one
// part there.
#define QUIRE_CUDA_OUTPUTS(X) X(StoreParts) X(AddToResidual) X(GatedUnit)
