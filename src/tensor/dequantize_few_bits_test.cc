// The types with code books, those of one or two bits and NVFP4 on bytes made by hand.
#include <cmath>
#include <random>
#include <vector>

#include <gtest/gtest.h>

#include "tensor/block_formats.h"
#include "tensor/quantize.h"

namespace quire {
namespace {

using Bytes = std::vector<uint8_t>;

// All zeros but for an f16 scale.
Bytes block_of(DType dtype, size_t scale_at, uint16_t scale) {
  Bytes block(traits(dtype).block_bytes);
  block[scale_at] = uint8_t(scale & 255);
  block[scale_at + 1] = uint8_t(scale >> 8);
  return block;
}
constexpr uint16_t kOne = 0x3c00, kEight = 0x4800, kFour = 0x4400;

std::vector<float> dequantize(DType dtype, const Bytes& bytes) {
  std::vector<float> values(bytes.size() / traits(dtype).block_bytes * traits(dtype).block_values);
  dequantize_row(dtype, reinterpret_cast<const std::byte*>(bytes.data()), values);
  return values;
}

TEST(CodeBooks, AreAsLongAndHaveTheMagnitudesThatTheirTypesWant) {
  using namespace format;
  const auto expect_of = [](const auto& book, std::vector<int> known) {
    std::vector<bool> seen(256, false);
    auto last = book[0];
    for (size_t i = 0; i < book.size(); ++i) {
      for (size_t k = 0; k < sizeof(last); ++k) seen[size_t(book[i] >> (8 * k) & 255)] = true;
      if (i > 0) {
        EXPECT_GT(book[i], last);
      }
      last = book[i];
    }
    for (int m = 0; m < 256; ++m)
      EXPECT_EQ(seen[size_t(m)], std::count(known.begin(), known.end(), m) == 1) << m;
  };
  expect_of(kBookIq2Xxs, {8, 25, 43});
  expect_of(kBookIq2Xs, {8, 25, 43});
  expect_of(kBookIq2S, {8, 25, 43});
  expect_of(kBookIq3Xxs, {4, 12, 20, 28, 36, 44, 52, 62});
  expect_of(kBookIq3S, {1, 3, 5, 7, 9, 11, 13, 15});
  expect_of(kBookIq1, {0, 8, 16});
}

TEST(Dequantize, Iq2XxsHasFourIndexesAndSignsOfWhichTheEighthMakesTheirNumberEven) {
  Bytes block = block_of(DType::iq2_xxs, 0, kEight);
  block[2] = 255;           // the last entry
  block[2 + 4] = 0x01;      // its first value is negative, and so the eighth
  block[2 + 7] = 0x30;      // scale 3
  block[2 + 8 + 7] = 0xf0;  // of the next 32 values: 15
  const std::vector<float> values = dequantize(DType::iq2_xxs, block);
  for (size_t i = 0; i < 8; ++i) {
    const float magnitude = float(format::kBookIq2Xxs[255] >> (8 * i) & 255);
    EXPECT_EQ(values[i], 7.0f * (i == 0 || i == 7 ? -magnitude : magnitude));
  }
  for (size_t i = 8; i < 256; ++i) EXPECT_EQ(values[i], i < 32 ? 56.0f : i < 64 ? 31 * 8.0f : 8.0f) << i;
}

TEST(Dequantize, Iq2XsHasIndexesOfNineBitsAndAScaleForSixteenValues) {
  Bytes block = block_of(DType::iq2_xs, 0, kEight);
  block[2] = 0xff, block[3] = 0x01 | 0x04 << 1;  // the last entry, the third value negative
  block[66] = 0xf2;                              // scales 2 and 15
  const std::vector<float> values = dequantize(DType::iq2_xs, block);
  for (size_t i = 0; i < 8; ++i) {
    const float magnitude = float(format::kBookIq2Xs[511] >> (8 * i) & 255);
    EXPECT_EQ(values[i], 5.0f * (i == 2 || i == 7 ? -magnitude : magnitude));
  }
  for (size_t i = 8; i < 256; ++i) EXPECT_EQ(values[i], i < 16 ? 40.0f : i < 32 ? 31 * 8.0f : 8.0f) << i;
}

TEST(Dequantize, Iq2SHasAllEightSigns) {
  Bytes block = block_of(DType::iq2_s, 0, kEight);
  block[2 + 5] = 255, block[66 + 1] = 3 << 2;  // group 5: entry 1023
  block[34 + 5] = 0x80;
  block[74 + 1] = 0x01;  // of groups 4 and 5
  const std::vector<float> values = dequantize(DType::iq2_s, block);
  for (size_t i = 0; i < 8; ++i) {
    const float magnitude = float(format::kBookIq2S[1023] >> (8 * i) & 255);
    EXPECT_EQ(values[40 + i], 3.0f * (i == 7 ? -magnitude : magnitude));
  }
  EXPECT_EQ(values[32], 24.0f);
  EXPECT_EQ(values[48], 8.0f);
}

TEST(Dequantize, Iq3XxsHasEntriesOfFour) {
  Bytes block = block_of(DType::iq3_xxs, 0, kFour);
  block[2 + 9] = 255;    // values 36 to 39
  block[66 + 4] = 0x10;  // of those 32: the fifth is negative, and the eighth
  block[66 + 7] = 0x20;
  const std::vector<float> values = dequantize(DType::iq3_xxs, block);
  for (size_t i = 0; i < 4; ++i) {
    const float magnitude = float(format::kBookIq3Xxs[255] >> (8 * i) & 255);
    EXPECT_EQ(values[36 + i], 5.0f * (i == 0 || i == 3 ? -magnitude : magnitude));
    EXPECT_EQ(values[32 + i], 20.0f);
  }
  EXPECT_EQ(values[0], 4.0f);
}

TEST(Dequantize, Iq3SHasNinthBitsApart) {
  Bytes block = block_of(DType::iq3_s, 0, kOne);
  block[2 + 63] = 255, block[66 + 7] = 0x80;  // the last four values: entry 511
  block[74 + 31] = 0x80;                      // the last one is negative
  block[106 + 3] = 0x40;                      // the last scale is 4
  const std::vector<float> values = dequantize(DType::iq3_s, block);
  for (size_t i = 0; i < 4; ++i) {
    const float magnitude = float(format::kBookIq3S[511] >> (8 * i) & 255);
    EXPECT_EQ(values[252 + i], 9.0f * (i == 3 ? -magnitude : magnitude));
  }
  EXPECT_EQ(values[251], 9.0f);
  EXPECT_EQ(values[0], 1.0f);
}

TEST(Dequantize, Iq1SMovesWholeSubBlocksByAnEighth) {
  Bytes block = block_of(DType::iq1_s, 0, kOne);
  block[2 + 1] = 255, block[34] = 7 << 3, block[35] = 0x20;  // the second group: entry 2047; scale 2
  block[37] = 0x80;                                          // the second sub-block is an eighth less
  const std::vector<float> values = dequantize(DType::iq1_s, block);
  for (size_t i = 0; i < 8; ++i) {
    const float grid = float(int(format::kBookIq1[2047] >> (8 * i) & 255) / 8 - 1);
    EXPECT_EQ(values[8 + i], 5.0f * (grid + 0.125f));
    EXPECT_EQ(values[i], 5.0f * (-1.0f + 0.125f));
    EXPECT_EQ(values[32 + i], -1.125f);
    EXPECT_EQ(values[64 + i], -0.875f);
  }
}

TEST(Dequantize, Iq1MHasItsScaleInFourParts) {
  Bytes block(56);
  block[55] = 0x30, block[53] = 0xc0;  // 0x3c00: the two highest parts
  block[48] = 3 << 3;                  // the second sub-block's scale is 3
  block[2] = 255, block[33] = 0x0f;    // the third group: entry 2047, an eighth less
  const std::vector<float> values = dequantize(DType::iq1_m, block);
  for (size_t i = 0; i < 8; ++i) {
    const float grid = float(int(format::kBookIq1[2047] >> (8 * i) & 255) / 8 - 1);
    EXPECT_EQ(values[16 + i], 7.0f * (grid - 0.125f));
    EXPECT_EQ(values[24 + i], 7.0f * -0.875f);
    EXPECT_EQ(values[i], -0.875f);
  }
}

TEST(Dequantize, TernaryTypesHaveDigitsInBaseThreeOrFields) {
  int8_t codes[256];
  for (int i = 0; i < 256; ++i) codes[i] = int8_t(i * 7 % 3 - 1);
  uint8_t block[66];
  int8_t again[256];
  format::Tq1_0::pack(2.5f, codes, block);
  EXPECT_EQ(format::Tq1_0::unpack(block, again), 2.5f);
  EXPECT_TRUE(std::equal(codes, codes + 256, again));
  // 243 numbers in 256 bytes: a byte is the number's share of 243, rounded up.
  EXPECT_EQ(block[0], (((((codes[0] + 1) * 3 + codes[32] + 1) * 3 + codes[64] + 1) * 3 + codes[96] + 1) * 3 +
                       codes[128] + 1) *
                              256 / 243 +
                          1);
  format::Tq2_0::pack(2.5f, codes, block);
  EXPECT_EQ(format::Tq2_0::unpack(block, again), 2.5f);
  EXPECT_TRUE(std::equal(codes, codes + 256, again));
  EXPECT_EQ(block[0], (codes[0] + 1) | (codes[32] + 1) << 2 | (codes[64] + 1) << 4 | (codes[96] + 1) << 6);
}

TEST(Dequantize, OneAndTwoBitsAreNeighboursInAByte) {
  Bytes block = block_of(DType::q1_0, 0, kFour);
  block[2] = 0x05;
  std::vector<float> values = dequantize(DType::q1_0, block);
  for (size_t i = 0; i < 128; ++i) EXPECT_EQ(values[i], i == 0 || i == 2 ? 4.0f : -4.0f);
  block = block_of(DType::q2_0, 0, kFour);
  block[3] = 0xe4;
  values = dequantize(DType::q2_0, block);
  for (size_t i = 0; i < 64; ++i)
    EXPECT_EQ(values[i], i == 5 ? 0.0f : i == 6 ? 4.0f : i == 7 ? 8.0f : -4.0f) << i;
}

TEST(Dequantize, Nvfp4HasAScaleForSixteenValuesWhoseSignDoesNotCount) {
  Bytes block(36);
  block[0] = 0x38, block[1] = 0xb8, block[2] = 0x01, block[3] = 0x7f;  // 1, 1 again, 2^-9, no number
  for (size_t j = 0; j < 4; ++j) block[4 + 8 * j] = 0xf2, block[4 + 8 * j + 7] = 0x07;
  const std::vector<float> values = dequantize(DType::nvfp4, block);
  for (size_t j = 0; j < 4; ++j) {
    const float scale = j < 2 ? 1.0f : j == 2 ? 0x1p-9f : 0.0f;
    EXPECT_EQ(values[16 * j], scale);
    EXPECT_EQ(values[16 * j + 7], 6.0f * scale);
    EXPECT_EQ(values[16 * j + 8], -6.0f * scale);
  }
  block[3] = 0xff;  // the other one that is no number, as llama.cpp reads it
  EXPECT_EQ(dequantize(DType::nvfp4, block)[48], 480.0f);
}

TEST(Dequantize, TakesAnyBytesOfTypesWithFewBits) {
  std::mt19937 random(4);
  for (DType dtype : {DType::iq2_xxs, DType::iq2_xs, DType::iq2_s, DType::iq3_xxs, DType::iq3_s, DType::iq1_s,
                      DType::iq1_m, DType::tq1_0, DType::tq2_0, DType::q1_0, DType::q2_0, DType::nvfp4}) {
    for (int round = 0; round < 64; ++round) {
      Bytes block(traits(dtype).block_bytes);
      for (uint8_t& byte : block) byte = round == 0 ? 255 : uint8_t(random());
      EXPECT_EQ(dequantize(dtype, block).size(), traits(dtype).block_values);
    }
  }
}

}  // namespace
}  // namespace quire
