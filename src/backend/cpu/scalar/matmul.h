#pragma once

#include "backend/cpu/kernels.h"

namespace quire::scalar {

// int8 with the scale amax / 127 per group, rounded to nearest, ties to even. A group in which nothing
// reaches 2^-100 counts as zero.
template <ActivationForm kForm>
void quantize_q8(const float* values, size_t n, std::byte* row);
void copy_f32(const float* values, size_t n, std::byte* row);
void to_f16(const float* values, size_t count, uint16_t* out);

// Weights of any type dequantized to f32, f32 activations. Products are added in 16 lanes (value i in lane
// i % 16) by fused multiply-adds, and the lanes in halves: 8 and 8, 4 and 4, 2 and 2, 1 and 1.
void matmul_f32(const MatmulArgs& args);

// Weights as UniformBlock, activations in kForm. With MAGIC = kMagic, P_b the integer sum over a group's
// sub-blocks up to b, d_b and m_b their scales and minimums, and a group's activation scale a:
//   scaled = -MAGIC * d_0, then fma(MAGIC + P_b, d_b - d_{b+1}, scaled) for each sub-block of the group;
//   sum = fma(scaled, a, sum) for each group;
//   minimums = fma(m_b, scaled sum of the activations of b, minimums) for each sub-block of the row;
// and the product is sum - minimums.
template <class Format, ActivationForm kForm>
void matmul_q8(const MatmulArgs& args);

}  // namespace quire::scalar
