#pragma once

#include "backend/cpu/kernels.h"

namespace quire::scalar {

// int8 with the scale amax / 127 per group, rounded to nearest, ties to even. A group in which nothing
// reaches 2^-100 counts as zero.
void quantize_q8_32(const float* values, size_t n, std::byte* row);
void quantize_q8_256(const float* values, size_t n, std::byte* row);
void copy_f32(const float* values, size_t n, std::byte* row);

// Weights of any type dequantized to f32, f32 activations. Products are added in 16 lanes (value i in lane
// i % 16), and the lanes in halves: 8 and 8, 4 and 4, 2 and 2, 1 and 1.
void matmul_f32(const MatmulArgs& args);

// Weights in blocks of 32, q8_32 activations. For each block, in order, the sum grows by
//   (weight scale * activation scale) * float(integer dot product)
// plus, where the format has an offset, and added to the above first,
//   (weight offset * activation scale) * float(activation sum).
template <class Format>
void matmul_q8_32(const MatmulArgs& args);

// Weights in blocks of 256, q8_256 activations. For each block, in order, the sum grows by
//   (weight scale * activation scale) * float(sum over sub-blocks of sub-scale * integer dot product)
// less, where the format has minimums, and taken from the above first,
//   (scale of minimums * activation scale) * float(sum over sub-blocks of sub-minimum * activation sum).
template <class Format>
void matmul_q8_256(const MatmulArgs& args);

}  // namespace quire::scalar
