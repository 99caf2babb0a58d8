#include <cmath>
#include <cstdint>

#include <gtest/gtest.h>

#include "tensor/float16.h"
#include "tensor/float8.h"

namespace quire {
namespace {

// A float of `fraction_bits` and exponent bias `bias`, by its definition; the top exponent is not special.
float by_definition(uint32_t bits, int fraction_bits, int exponent_bits) {
  const int bias = (1 << (exponent_bits - 1)) - 1;
  const uint32_t fraction = bits & ((1u << fraction_bits) - 1);
  const int exponent = int(bits >> fraction_bits) & ((1 << exponent_bits) - 1);
  const bool negative = (bits >> (fraction_bits + exponent_bits)) & 1;
  const float magnitude =
      exponent == 0 ? std::ldexp(float(fraction), 1 - bias - fraction_bits)
                    : std::ldexp(float(fraction + (1u << fraction_bits)), exponent - bias - fraction_bits);
  return negative ? -magnitude : magnitude;
}

TEST(Float16, ReadsEveryValue) {
  for (uint32_t bits = 0; bits < 65536; ++bits) {
    const float value = f16_to_f32(uint16_t(bits));
    if ((bits & 0x7c00) != 0x7c00) {
      ASSERT_EQ(value, by_definition(bits, 10, 5)) << bits;
      ASSERT_EQ(std::signbit(value), bits >= 0x8000) << bits;
    } else if ((bits & 0x3ff) == 0) {
      ASSERT_EQ(value, bits >= 0x8000 ? -INFINITY : INFINITY);
    } else {
      ASSERT_TRUE(std::isnan(value)) << bits;
    }
  }
}

TEST(Float16, WritesEveryValueAndRoundsBetweenThemToEven) {
  for (uint32_t bits = 0; bits < 65536; ++bits) {
    const float value = f16_to_f32(uint16_t(bits));
    if (std::isnan(value)) {
      ASSERT_TRUE(std::isnan(f16_to_f32(f32_to_f16(value)))) << bits;
      continue;
    }
    ASSERT_EQ(f32_to_f16(value), bits);
    if ((bits & 0x7fff) >= 0x7bff) continue;  // the largest has no finite neighbour
    const float next = f16_to_f32(uint16_t(bits + 1));
    const float middle = 0.5f * (value + next);  // exact
    ASSERT_EQ(f32_to_f16(middle), bits % 2 == 0 ? bits : bits + 1) << bits;
    ASSERT_EQ(f32_to_f16(std::nextafter(middle, value)), bits);
    ASSERT_EQ(f32_to_f16(std::nextafter(middle, next)), bits + 1);
  }
  EXPECT_EQ(f32_to_f16(65519.99f), 0x7bff);
  EXPECT_EQ(f32_to_f16(65520.0f), 0x7c00);  // half a step above the largest: the tie goes up, to infinity
  EXPECT_EQ(f32_to_f16(-1e30f), 0xfc00);
  EXPECT_EQ(f32_to_f16(1e-30f), 0);
}

TEST(Bfloat16, IsTheUpperHalfOfAFloat) {
  for (uint32_t bits = 0; bits < 65536; ++bits) {
    const float value = bf16_to_f32(uint16_t(bits));
    ASSERT_EQ(std::bit_cast<uint32_t>(value), bits << 16);
    if (std::isnan(value)) {
      ASSERT_TRUE(std::isnan(bf16_to_f32(f32_to_bf16(value)))) << bits;
      continue;
    }
    ASSERT_EQ(f32_to_bf16(value), bits);
    if ((bits & 0x7fff) >= 0x7f7f) continue;
    const float middle = std::bit_cast<float>((bits << 16) | 0x8000u);
    ASSERT_EQ(f32_to_bf16(middle), bits % 2 == 0 ? bits : bits + 1) << bits;
    ASSERT_EQ(f32_to_bf16(std::bit_cast<float>((bits << 16) | 0x7fffu)), bits);
    ASSERT_EQ(f32_to_bf16(std::bit_cast<float>((bits << 16) | 0x8001u)), bits + 1);
  }
}

TEST(Float8, ReadsAndWritesEveryValueAndRoundsBetweenThemToEven) {
  for (uint32_t bits = 0; bits < 256; ++bits) {
    const float value = f8_e4m3_to_f32(uint8_t(bits));
    if ((bits & 0x7f) == 0x7f) {
      ASSERT_TRUE(std::isnan(value));
      ASSERT_EQ(f32_to_f8_e4m3(value), bits);
      continue;
    }
    ASSERT_EQ(value, by_definition(bits, 3, 4)) << bits;
    ASSERT_EQ(f32_to_f8_e4m3(value), bits);
    if ((bits & 0x7f) == 0x7e) continue;
    const float next = f8_e4m3_to_f32(uint8_t(bits + 1));
    const float middle = 0.5f * (value + next);
    ASSERT_EQ(f32_to_f8_e4m3(middle), bits % 2 == 0 ? bits : bits + 1) << bits;
    ASSERT_EQ(f32_to_f8_e4m3(std::nextafter(middle, value)), bits);
    ASSERT_EQ(f32_to_f8_e4m3(std::nextafter(middle, next)), bits + 1);
  }
}

TEST(Float8, CutsWhatIsTooLargeToItsLargestValue) {
  EXPECT_EQ(f8_e4m3_to_f32(0x7e), 448.0f);
  EXPECT_EQ(f32_to_f8_e4m3(449.0f), 0x7e);
  EXPECT_EQ(f32_to_f8_e4m3(1e30f), 0x7e);
  EXPECT_EQ(f32_to_f8_e4m3(-INFINITY), 0xfe);
  EXPECT_EQ(f32_to_f8_e4m3(1e-30f), 0x00);
  EXPECT_EQ(f32_to_f8_e4m3(-1e-30f), 0x80);
}

}  // namespace
}  // namespace quire
