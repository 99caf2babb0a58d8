#include "backend/cuda/matmul/mma_twin.h"

#include <algorithm>
#include <bit>
#include <climits>
#include <cmath>

#include "backend/cuda/matmul/weight_packing.h"
#include "base/check.h"
#include "tensor/float16.h"

namespace quire::cuda {
namespace {

// magnitude * 2^exponent with a sign; the bits of a float taken apart.
struct Term {
  int64_t value = 0;
  int exponent = 0;  // of the last bit of `value`
  int leading = 0;   // the exponent that alignment goes by
};

struct Bf16Parts {
  int64_t significand;  // 8 bits with the leading one
  int exponent;         // of the leading one
};

Bf16Parts parts_of(uint16_t bits) {
  const int field = bits >> 7 & 255;
  const int64_t significand = (bits & 127) | (field != 0 ? 128 : 0);
  return {(bits & 0x8000) != 0 ? -significand : significand, std::max(field, 1) - 127};
}

Term product_of(uint16_t a, uint16_t b) {
  const Bf16Parts x = parts_of(a), y = parts_of(b);
  const int leading = x.exponent + y.exponent;
  return {x.significand * y.significand, leading - 14, leading};
}

Term term_of(float value) {
  const uint32_t bits = std::bit_cast<uint32_t>(value);
  const int field = int(bits >> 23 & 255);
  const int64_t significand = int64_t(bits & 0x7fffff) | (field != 0 ? 0x800000 : 0);
  const int leading = std::max(field, 1) - 127;
  return {(bits >> 31) != 0 ? -significand : significand, leading - 23, leading};
}

int64_t cut_toward_zero(int64_t value, int bits) {
  if (bits > 62) return 0;
  return value < 0 ? -(-value >> bits) : value >> bits;
}

// value * 2^exponent as f32, cut toward zero. The value is below 2^62.
float to_f32(int64_t value, int exponent) {
  if (value == 0) return 0.0f;
  uint64_t magnitude = uint64_t(value < 0 ? -value : value);
  const int excess = int(std::bit_width(magnitude)) - 24;
  // 24 bits are exact in f32, and what is below them is dropped.
  const int last = std::max(exponent + excess, -149);
  const int drop = last - exponent;
  magnitude = drop > 0 ? magnitude >> std::min(drop, 63) : magnitude << -drop;
  const float cut = std::ldexp(float(magnitude), last);
  return value < 0 ? -cut : cut;
}

float mma_terms(const uint16_t* a, const uint16_t* b, int count, float accumulator, int fraction_bits) {
  Term terms[17];
  terms[0] = term_of(accumulator);
  for (int i = 0; i < count; ++i) terms[i + 1] = product_of(a[i], b[i]);
  int largest = INT_MIN;
  for (int i = 0; i <= count; ++i) {
    if (terms[i].value != 0) largest = std::max(largest, terms[i].leading);
  }
  if (largest == INT_MIN) return 0.0f;
  const int last = largest - fraction_bits;
  int64_t sum = 0;
  for (int i = 0; i <= count; ++i) {
    const int shift = terms[i].exponent - last;
    if (terms[i].value == 0) continue;
    sum += shift >= 0 ? terms[i].value << shift : cut_toward_zero(terms[i].value, -shift);
  }
  return to_f32(sum, last);
}

}  // namespace

float mma_step(const uint16_t* a, const uint16_t* b, float accumulator, const MmaRule& rule) {
  for (int i = 0; i < 16; i += rule.terms) {
    accumulator = mma_terms(a + i, b + i, rule.terms, accumulator, rule.fraction_bits);
  }
  return accumulator;
}

float product_twin(const WeightShape& shape, std::span<const std::byte> packed, uint32_t row,
                   std::span<const uint16_t> activations, const MmaRule& rule) {
  CHECK(activations.size() == shape.cols);
  const bool plain = shape.format == WeightFormat::bf16;
  const KPlan plan = shape.k_plan();
  float total = 0;
  for (uint32_t slice = 0; slice < plan.slices; ++slice) {
    float sum = 0;
    for (uint32_t block = slice * plan.slice_blocks; block < (slice + 1) * plan.slice_blocks; ++block) {
      uint16_t a[kBlockK] = {}, b[kBlockK] = {};
      for (uint32_t i = 0; i < kBlockK; ++i) {
        const uint32_t k = block * kBlockK + i;
        const float weight = packed_value(shape, packed, row, k);
        a[position_of(i)] = f32_to_bf16(plain ? weight : weight * kStoredWeight);
        if (k < shape.cols) b[position_of(i)] = activations[k];
      }
      for (uint32_t step = 0; step < kBlockK; step += 16) sum = mma_step(a + step, b + step, sum, rule);
    }
    total = slice == 0 ? sum : total + sum;
  }
  return plain ? total : total * kUndoStoredWeight;
}

}  // namespace quire::cuda
