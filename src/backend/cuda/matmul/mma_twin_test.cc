#include "backend/cuda/matmul/mma_twin.h"

#include <algorithm>
#include <cmath>
#include <random>
#include <vector>

#include <gtest/gtest.h>

#include "backend/cuda/matmul/random_weight.h"
#include "backend/cuda/matmul/weight_packing.h"
#include "tensor/float16.h"

namespace quire::cuda {
namespace {

constexpr MmaRule kRules[] = {kHopperRule, kAmpereRule};

std::vector<uint16_t> random_bf16(size_t count, uint32_t seed) {
  std::mt19937 random(seed);
  std::vector<uint16_t> values(count);
  for (uint16_t& value : values) {
    value = f32_to_bf16(std::ldexp(float(random() % 4001) - 2000.0f, int(random() % 8) - 14));
  }
  return values;
}

uint16_t bits(float value) {
  return f32_to_bf16(value);
}

TEST(MmaTwin, AddsSmallIntegersExactly) {
  uint16_t a[16], b[16];
  float expected = 5;
  for (int i = 0; i < 16; ++i) {
    a[i] = bits(float(i - 7));
    b[i] = bits(float(3 * i + 1));
    expected += float((i - 7) * (3 * i + 1));
  }
  for (const MmaRule& rule : kRules) EXPECT_EQ(mma_step(a, b, 5.0f, rule), expected);
}

TEST(MmaTwin, CutsTowardZeroBelowItsFractionBits) {
  uint16_t a[16] = {bits(1.0f), bits(0x1p-26f)}, b[16] = {bits(1.0f), bits(1.0f)};
  EXPECT_EQ(mma_step(a, b, 0.0f, kHopperRule), 1.0f);
  // 2^-25 twice is kept by 25 bits until f32 cuts the sum at 2^-23; four of 2^-25 make one 2^-23.
  for (int i = 1; i < 5; ++i) {
    a[i] = bits(0x1p-25f);
    b[i] = bits(1.0f);
  }
  EXPECT_EQ(mma_step(a, b, 0.0f, kHopperRule), 1.0f + 0x1p-23f);
  EXPECT_EQ(mma_step(a, b, 0.0f, kAmpereRule), 1.0f);  // 24 bits drop each of them
  for (uint16_t& value : a) value ^= 0x8000;
  EXPECT_EQ(mma_step(a, b, 0.0f, kHopperRule), -1.0f - 0x1p-23f);  // toward zero, not down
}

TEST(MmaTwin, AlignsToTheSumOfExponentsNotToTheProduct) {
  // 1.5 * 1.5 = 2.25 has the exponent 1, but counts as 0: the small term is cut at 2^-25, not at 2^-24.
  uint16_t a[16] = {bits(1.5f), bits(-1.5f), bits(0x1p-25f)}, b[16] = {bits(1.5f), bits(1.5f), bits(1.0f)};
  EXPECT_EQ(mma_step(a, b, 0.0f, kHopperRule), 0x1p-25f);
}

TEST(MmaTwin, OrderInsideAStepDoesNotMatterOnHopper) {
  for (uint32_t seed = 0; seed < 200; ++seed) {
    std::vector<uint16_t> a = random_bf16(16, seed), b = random_bf16(16, seed + 1000);
    const float expected = mma_step(a.data(), b.data(), 0.37f, kHopperRule);
    std::mt19937 random(seed);
    for (size_t i = 15; i > 0; --i) {
      const size_t j = random() % (i + 1);
      std::swap(a[i], a[j]);
      std::swap(b[i], b[j]);
    }
    EXPECT_EQ(mma_step(a.data(), b.data(), 0.37f, kHopperRule), expected);
    EXPECT_EQ(mma_step(b.data(), a.data(), 0.37f, kHopperRule), expected);  // nor which operand is which
  }
}

TEST(MmaTwin, APowerOfTwoOnOneOperandComesOutUnchanged) {
  for (const MmaRule& rule : kRules) {
    for (uint32_t seed = 0; seed < 100; ++seed) {
      std::vector<uint16_t> a = random_bf16(32, seed), b = random_bf16(32, seed + 1000);
      float plain = 0, scaled = 0;
      for (int i = 0; i < 32; i += 16) plain = mma_step(&a[i], &b[i], plain, rule);
      for (uint16_t& value : a) value = bits(bf16_to_f32(value) * kStoredWeight);
      for (int i = 0; i < 32; i += 16) scaled = mma_step(&a[i], &b[i], scaled, rule);
      EXPECT_EQ(scaled * kUndoStoredWeight, plain);
    }
  }
}

TEST(MmaTwin, IsCloseToTheExactSum) {
  for (const MmaRule& rule : kRules) {
    const std::vector<uint16_t> a = random_bf16(4096, 1), b = random_bf16(4096, 2);
    double exact = 0, magnitude = 0;
    float sum = 0;
    for (size_t i = 0; i < a.size(); ++i) {
      const double product = double(bf16_to_f32(a[i])) * double(bf16_to_f32(b[i]));
      exact += product;
      magnitude += std::abs(product);
    }
    for (size_t i = 0; i < a.size(); i += 16) sum = mma_step(&a[i], &b[i], sum, rule);
    EXPECT_NEAR(sum, exact, magnitude * 0x1p-21);
    EXPECT_NE(double(sum), exact);
  }
}

TEST(ProductTwin, AgreesWithF64OverTheDequantizedWeights) {
  for (const DType dtype : {DType::bf16, DType::q8_0, DType::q4_0, DType::q4_k, DType::q6_k, DType::mxfp4}) {
    for (const uint32_t cols : {256u, 768u, 2048u}) {
      const RandomWeight weight(dtype, 16, cols, 7);
      const WeightShape shape = packed_shape(weight.view(), {});
      const std::vector<std::byte> packed = pack_on_host(weight.view(), {});
      const std::vector<uint16_t> x = random_bf16(cols, 8);
      for (const uint32_t row : {0u, 7u, 8u, 15u}) {
        double exact = 0, magnitude = 0;
        for (uint32_t k = 0; k < cols; ++k) {
          const double product = double(packed_value(shape, packed, row, k)) * double(bf16_to_f32(x[k]));
          exact += product;
          magnitude += std::abs(product);
        }
        const float y = product_twin(shape, packed, row, x, kHopperRule);
        EXPECT_NEAR(y, exact, magnitude * 0x1p-21) << name(shape.format) << " " << cols;
      }
    }
  }
}

TEST(ProductTwin, ColumnsOfZerosBehindTheLastChangeNothing) {
  const RandomWeight weight(DType::q8_0, 16, 160, 9);  // two blocks, the second padded
  const std::vector<std::byte> packed = pack_on_host(weight.view(), {});
  const WeightShape shape = packed_shape(weight.view(), {});
  std::vector<uint16_t> x = random_bf16(160, 10);
  const float y = product_twin(shape, packed, 3, x, kHopperRule);
  x.resize(256);
  EXPECT_EQ(product_twin({shape.format, 16, 256}, packed, 3, x, kHopperRule), y);
}

}  // namespace
}  // namespace quire::cuda
