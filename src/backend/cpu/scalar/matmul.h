#pragma once

#include "backend/cpu/kernels.h"

namespace quire::scalar {

// Values of more than outlier_means times the mean magnitude of their span are outliers. The others are int8 with the
// scale amax / 127 per group, rounded to nearest, ties to even; if none of them reaches 2^-100 they count as zero.
// Magnitudes are added in 16 lanes (value i in lane i % 16), and the lanes in halves.
template <ActivationForm kForm>
void quantize_q8(const float* values, size_t n, std::byte* row);

// Where the outliers of a span go.
struct SpanOutliers {
  Outlier* list;
  uint32_t* count;
  size_t most;
};
// Of the span that a column is in; with its first column it begins anew. Always inlined: files for other instruction sets use it.
static inline __attribute__((always_inline)) SpanOutliers outliers_at(const MutableQ8Row& row, size_t group,
                                                                      size_t col) {
  uint32_t* count = row.outlier_counts + col / kOutlierSpan;
  if (col % kOutlierSpan == 0) *count = 0;
  return {row.outliers + col / kOutlierSpan * most_outliers(group), count, most_outliers(group)};
}

// A group that has outliers, values above `most`: its codes, and the outliers to their list. Returns the scale.
inline constexpr size_t kSumLanes = 16;
float round_without_outliers(const float* values, size_t count, float most, int8_t* out, size_t first_col,
                             SpanOutliers& outliers);

void copy_f32(const float* values, size_t n, std::byte* row);
// To nearest, ties to even; NaN stays NaN.
void round_to_bf16(const float* values, size_t n, std::byte* row);
void to_f16(const float* values, size_t count, uint16_t* out);
void use_recurrences(CpuKernels& kernels);

// Weights of any type dequantized to f32, f32 activations. Products are added in 16 lanes (value i in lane
// i % 16) by fused multiply-adds, and the lanes in halves: 8 and 8, 4 and 4, 2 and 2, 1 and 1.
void matmul_f32(const MatmulArgs& args);
// The same with bf16 activations: their products with bf16 weights are exact.
void matmul_bf16(const MatmulArgs& args);

// Weights as UniformBlock, activations in kForm. In blocks of 256, which are groups of the activations, with S_b the
// integer sum of a sub-block's products, s_b and m_b its scale and minimum, A_b the sum of its activations' codes, d and e
// the scales of the block, and the activations' scale a:
//   scaled = float(sum of s_b * S_b) * d, less by fma float(sum of m_b * A_b) * e;
//   sum = fma(scaled, a, sum) for each block.
// In others, with MAGIC = kMagic, P_b the integer sum over a group's
// sub-blocks up to b, d_b and m_b their scales and minimums, and a group's activation scale a:
//   scaled = -MAGIC * d_0, then fma(MAGIC + P_b, d_b - d_{b+1}, scaled) for each sub-block of the group;
//   sum = fma(scaled, a, sum) for each group;
//   minimums = fma(m_b, scaled sum of the activations of b, minimums) for each sub-block of the row;
//   product = sum - minimums.
// Then product = fma(d * code - m, value, product) for each outlier, by column, where d * code - m is
//   rounded once.
template <class Format, ActivationForm kForm>
void matmul_q8(const MatmulArgs& args);

// Grouped weights (grouped_weights.h), activations in kForm with the same group. With S_g the integer sum of a group's products,
// d_g the scale of the weights and a_g that of the activations:
//   sum = fma(float(S_g), a_g * d_g, sum) for each group; S_g is exact as a float.
// Then sum = fma(d_g * code, value, sum) for each outlier, by column, where d_g * code is exact.
template <class Format, ActivationForm kForm>
void matmul_grouped(const MatmulArgs& args);

}  // namespace quire::scalar
