#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "backend/cuda/matmul/weight_layout.h"

// What NVIDIA's tensor cores compute for bf16 with an f32 sum, bit for bit, in plain C++: the oracle of the product
// kernels where there is no GPU. For finite numbers whose products and sums are normal f32.

namespace quire::cuda {

// The terms of a step are aligned to the largest exponent among them and the accumulator (a product's exponent being
// the sum of its factors', not normalized), cut toward zero at `fraction_bits` below it, added exactly, and the sum
// is cut toward zero to f32. A step of 16 is done `terms` at a time.
struct MmaRule {
  int fraction_bits;
  int terms;
};
inline constexpr MmaRule kHopperRule = {25, 16};  // and Blackwell: mma.sync and wgmma alike
inline constexpr MmaRule kAmpereRule = {24, 8};   // and Ada

// accumulator + sum of a[i] b[i] over 16 bf16.
float mma_step(const uint16_t* a, const uint16_t* b, float accumulator, const MmaRule& rule);

// One number of a product as every kernel must give it, before an epilogue: row `row` of a packed weight times a
// token's activations, which are bf16 in their natural order, shape.cols of them.
float product_twin(const WeightShape& shape, std::span<const std::byte> packed, uint32_t row,
                   std::span<const uint16_t> activations, const MmaRule& rule);

}  // namespace quire::cuda
