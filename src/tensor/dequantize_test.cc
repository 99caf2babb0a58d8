// Every block format on bytes made by hand: the values are worked out from the format's definition.
#include <algorithm>
#include <cstring>
#include <vector>

#include <gtest/gtest.h>

#include "tensor/block_formats.h"
#include "tensor/quantize.h"

namespace quire {
namespace {

// Half precision by hand: 1.0 has exponent bits 15, so 0x3c00; each power of two is 0x0400 away.
constexpr uint16_t kQuarter = 0x3400, kHalf = 0x3800, kOne = 0x3c00, kTwo = 0x4000;
constexpr uint16_t kMinusOneAndAHalf = 0xbe00;

using Bytes = std::vector<uint8_t>;

void append(Bytes& bytes, std::initializer_list<int> values) {
  for (int value : values) bytes.push_back(uint8_t(value));
}

void append_u16(Bytes& bytes, uint16_t value) {
  append(bytes, {value & 255, value >> 8});
}

// 16 bytes whose low halves count up from 0 and whose high halves count down from 15.
void append_ramp(Bytes& bytes) {
  for (int i = 0; i < 16; ++i) bytes.push_back(uint8_t(i | ((15 - i) << 4)));
}

std::vector<float> dequantize(DType dtype, const Bytes& bytes) {
  EXPECT_EQ(bytes.size(), traits(dtype).block_bytes);
  std::vector<float> values(traits(dtype).block_values);
  dequantize_row(dtype, reinterpret_cast<const std::byte*>(bytes.data()), values);
  return values;
}

TEST(Dequantize, Q40IsScaleTimesCodeLessEight) {
  Bytes block;
  append_u16(block, kHalf);
  append_ramp(block);
  const std::vector<float> values = dequantize(DType::q4_0, block);
  for (int i = 0; i < 16; ++i) {
    EXPECT_EQ(values[i], 0.5f * float(i - 8));
    EXPECT_EQ(values[16 + i], 0.5f * float(15 - i - 8));
  }
}

TEST(Dequantize, Q41AddsAnOffset) {
  Bytes block;
  append_u16(block, kTwo);
  append_u16(block, kMinusOneAndAHalf);
  append_ramp(block);
  const std::vector<float> values = dequantize(DType::q4_1, block);
  for (int i = 0; i < 16; ++i) {
    EXPECT_EQ(values[i], 2.0f * float(i) - 1.5f);
    EXPECT_EQ(values[16 + i], 2.0f * float(15 - i) - 1.5f);
  }
}

TEST(Dequantize, Q50TakesItsFifthBitsFromAWord) {
  Bytes block;
  append_u16(block, kQuarter);
  append(block, {0x03, 0x00, 0x00, 0x80});  // bits 0, 1 and 31 are set
  append_ramp(block);
  const std::vector<float> values = dequantize(DType::q5_0, block);
  for (int i = 0; i < 32; ++i) {
    const int half = i < 16 ? i : 31 - i;
    const int fifth = i == 0 || i == 1 || i == 31 ? 16 : 0;
    EXPECT_EQ(values[i], 0.25f * float(half + fifth - 16)) << i;
  }
}

TEST(Dequantize, Q51HasFifthBitsAndAnOffset) {
  Bytes block;
  append_u16(block, kQuarter);
  append_u16(block, kMinusOneAndAHalf);
  append(block, {0x00, 0x01, 0x80, 0x00});  // bits 8 and 23 are set
  append_ramp(block);
  const std::vector<float> values = dequantize(DType::q5_1, block);
  for (int i = 0; i < 32; ++i) {
    const int half = i < 16 ? i : 31 - i;
    const int fifth = i == 8 || i == 23 ? 16 : 0;
    EXPECT_EQ(values[i], 0.25f * float(half + fifth) - 1.5f) << i;
  }
}

TEST(Dequantize, Q80IsScaleTimesSignedByte) {
  Bytes block;
  append_u16(block, kHalf);
  for (int i = 0; i < 32; ++i) block.push_back(uint8_t(i == 31 ? 0x80 : i - 16));  // 0x80 is -128
  const std::vector<float> values = dequantize(DType::q8_0, block);
  for (int i = 0; i < 31; ++i) EXPECT_EQ(values[i], 0.5f * float(i - 16));
  EXPECT_EQ(values[31], -64.0f);
}

TEST(Dequantize, Q2KHasScalesAndMinimumsInHalfBytes) {
  Bytes block;
  for (int j = 0; j < 16; ++j) block.push_back(uint8_t(j | ((15 - j) << 4)));  // scale j, minimum 15 - j
  for (int i = 0; i < 64; ++i) block.push_back(0xe4);  // fields 0, 1, 2, 3 from the bottom
  block[16 + 5] = 0x1b;                                // fields 3, 2, 1, 0
  append_u16(block, kOne);
  append_u16(block, kHalf);
  const std::vector<float> values = dequantize(DType::q2_k, block);
  for (int i = 0; i < 256; ++i) {
    const int plane = (i / 32) % 4;
    const int code = i < 128 && i % 32 == 5 ? 3 - plane : plane;
    const int j = i / 16;
    EXPECT_EQ(values[i], float(j * code) - 0.5f * float(15 - j)) << i;
  }
}

TEST(Dequantize, Q3KTakesFourAwayWhereItsThirdBitIsUnset) {
  Bytes block(32, 0xf0);  // third bits: unset for the first 128 values, set for the others
  for (int i = 0; i < 64; ++i) block.push_back(0xe4);
  // Scale j is j - 8, stored plus 32 as 24 + j. Below j = 8 that is 16 + (8 + j): low bits 8 + j, high bits
  // 1; from j = 8 on it is 32 + (j - 8): low bits j - 8, high bits 2. So byte j holds 8 + j and, above it, j;
  // the last four bytes hold the high bits of j % 4 as fields 1, 1, 2, 2.
  append(block, {0x08, 0x19, 0x2a, 0x3b, 0x4c, 0x5d, 0x6e, 0x7f, 0xa5, 0xa5, 0xa5, 0xa5});
  append_u16(block, kHalf);
  const std::vector<float> values = dequantize(DType::q3_k, block);
  for (int i = 0; i < 256; ++i) {
    const int code = (i / 32) % 4 - (i < 128 ? 4 : 0);
    EXPECT_EQ(values[i], 0.5f * float(i / 16 - 8) * float(code)) << i;
  }
}

// Sub-block j: scale 1 + 8 j, minimum 60 - 8 j. The last four scales are 33, 41, 49, 57 (high bits 2, 2, 3,
// 3, low bits 1, 9, 1, 9), the last four minimums 28, 20, 12, 4 (high bits 1, 1, 0, 0, low bits 12, 4, 12,
// 4).
void append_scales_and_mins(Bytes& block) {
  append(block, {1 | 0x80, 9 | 0x80, 17 | 0xc0, 25 | 0xc0});
  append(block, {60 | 0x40, 52 | 0x40, 44, 36});
  append(block, {0xc1, 0x49, 0xc1, 0x49});
}

// 4 x 32 bytes: low halves count up twice, high halves are 8 + group.
void append_groups(Bytes& block) {
  for (int g = 0; g < 4; ++g) {
    for (int i = 0; i < 32; ++i) block.push_back(uint8_t((i & 15) | ((8 + g) << 4)));
  }
}

int group_code(int i) {
  return i % 64 < 32 ? i % 16 : 8 + i / 64;
}

TEST(Dequantize, Q4KSplitsItsLastScalesOverThreeBytes) {
  Bytes block;
  append_u16(block, kOne);
  append_u16(block, kTwo);
  append_scales_and_mins(block);
  append_groups(block);
  const std::vector<float> values = dequantize(DType::q4_k, block);
  for (int i = 0; i < 256; ++i) {
    const int j = i / 32;
    EXPECT_EQ(values[i], float((1 + 8 * j) * group_code(i)) - 2.0f * float(60 - 8 * j)) << i;
  }
}

TEST(Dequantize, Q5KTakesTheFifthBitOfSubBlockKFromBitK) {
  Bytes block;
  append_u16(block, kOne);
  append_u16(block, kTwo);
  append_scales_and_mins(block);
  for (int i = 0; i < 32; ++i)
    block.push_back(i == 3 ? 0x5a : 0xa5);  // sub-blocks 0, 2, 5, 7, but for value 3
  append_groups(block);
  const std::vector<float> values = dequantize(DType::q5_k, block);
  for (int i = 0; i < 256; ++i) {
    const int j = i / 32;
    const bool among = j == 0 || j == 2 || j == 5 || j == 7;
    const int fifth = among != (i % 32 == 3) ? 16 : 0;
    EXPECT_EQ(values[i], float((1 + 8 * j) * (group_code(i) + fifth)) - 2.0f * float(60 - 8 * j)) << i;
  }
}

TEST(Dequantize, Q6KTakesTwoHighBitsPerPlane) {
  Bytes block;
  for (int i = 0; i < 128; ++i) block.push_back(uint8_t((i & 15) | ((15 - (i & 15)) << 4)));
  block[64 + 32 + 7] = 0xc3;                           // second group, second half: low 3, high 12
  for (int i = 0; i < 64; ++i) block.push_back(0xe4);  // plane p adds 16 p
  for (int j = 0; j < 16; ++j) block.push_back(uint8_t(10 * (j - 8)));
  append_u16(block, kQuarter);
  const std::vector<float> values = dequantize(DType::q6_k, block);
  for (int i = 0; i < 256; ++i) {
    const int plane = (i / 32) % 4;
    int half = plane < 2 ? i % 16 : 15 - i % 16;  // planes 0 and 1 are low halves, 2 and 3 high ones
    if (i == 128 + 32 + 7) half = 3;
    if (i == 128 + 96 + 7) half = 12;
    EXPECT_EQ(values[i], 0.25f * float(10 * (i / 16 - 8)) * float(half + 16 * plane - 32)) << i;
  }
}

constexpr float kIq4[16] = {-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113};

TEST(Dequantize, Iq4NlGoesThroughATable) {
  Bytes block;
  append_u16(block, kTwo);
  append_ramp(block);
  const std::vector<float> values = dequantize(DType::iq4_nl, block);
  for (int i = 0; i < 16; ++i) {
    EXPECT_EQ(values[i], 2.0f * kIq4[i]);
    EXPECT_EQ(values[16 + i], 2.0f * kIq4[15 - i]);
  }
}

TEST(Dequantize, Iq4XsHasSixBitScales) {
  Bytes block;
  append_u16(block, kHalf);
  // Scale j is 9 j - 32, stored as 9 j: 0, 9, 18, 27, 36, 45, 54, 63. High bits 0, 0, 1, 1, 2, 2, 3, 3 make
  // the word 0xfa50; low bits 0, 9, 2, 11, 4, 13, 6, 15 make four bytes.
  append_u16(block, 0xfa50);
  append(block, {0x90, 0xb2, 0xd4, 0xf6});
  for (int j = 0; j < 8; ++j) append_ramp(block);
  const std::vector<float> values = dequantize(DType::iq4_xs, block);
  for (int i = 0; i < 256; ++i) {
    const int code = i % 32 < 16 ? i % 32 : 31 - i % 32;
    EXPECT_EQ(values[i], 0.5f * float(9 * (i / 32) - 32) * kIq4[code]) << i;
  }
}

TEST(Dequantize, Mxfp4IsAnE2M1FloatTimesAPowerOfTwo) {
  constexpr float kFloats[16] = {0, 0.5f, 1, 1.5f, 2, 3, 4, 6, -0.0f, -0.5f, -1, -1.5f, -2, -3, -4, -6};
  const struct {
    int exponent;
    float power;  // 2^(exponent - 127)
  } cases[] = {{127, 1.0f}, {128, 2.0f}, {120, 0x1p-7f}, {2, 0x1p-125f}, {1, 0x1p-126f}, {0, 0x1p-127f}};
  for (const auto& [exponent, power] : cases) {
    Bytes block;
    append(block, {exponent});
    append_ramp(block);
    const std::vector<float> values = dequantize(DType::mxfp4, block);
    for (int i = 0; i < 16; ++i) {
      EXPECT_EQ(values[i], power * kFloats[i]);
      EXPECT_EQ(values[16 + i], power * kFloats[15 - i]);
    }
  }
}

TEST(Dequantize, PlainTypesNeedNoAlignment) {
  uint8_t bytes[1 + 8];
  std::vector<float> values(2);
  const float floats[2] = {1.5f, -3.0f};
  std::memcpy(bytes + 1, floats, 8);
  dequantize_row(DType::f32, reinterpret_cast<std::byte*>(bytes + 1), values);
  EXPECT_EQ(values, (std::vector<float>{1.5f, -3.0f}));
  const uint16_t halves[2] = {kMinusOneAndAHalf, kTwo};
  std::memcpy(bytes + 1, halves, 4);
  dequantize_row(DType::f16, reinterpret_cast<std::byte*>(bytes + 1), values);
  EXPECT_EQ(values, (std::vector<float>{-1.5f, 2.0f}));
  const uint16_t brains[2] = {0x3f80, 0xc000};  // the upper halves of 1.0f and -2.0f
  std::memcpy(bytes + 1, brains, 4);
  dequantize_row(DType::bf16, reinterpret_cast<std::byte*>(bytes + 1), values);
  EXPECT_EQ(values, (std::vector<float>{1.0f, -2.0f}));
  const int32_t whole[2] = {7, -9};
  std::memcpy(bytes + 1, whole, 8);
  dequantize_row(DType::i32, reinterpret_cast<std::byte*>(bytes + 1), values);
  EXPECT_EQ(values, (std::vector<float>{7.0f, -9.0f}));
}

// Any bytes but those of an infinite scale: every position that can hold an f16 stays below.
template <class Format, class Codes>
void expect_pack_undoes_unpack(std::initializer_list<size_t> f16_positions) {
  uint32_t state = 1;
  for (int round = 0; round < 200; ++round) {
    uint8_t block[Format::kBytes], again[Format::kBytes];
    for (uint8_t& byte : block) byte = uint8_t((state = state * 1664525u + 1013904223u) >> 24);
    for (size_t position : f16_positions) block[position + 1] &= 0xbf;
    Codes codes = {};
    Format::unpack(block, codes);
    Format::pack(codes, again);
    ASSERT_TRUE(std::equal(block, block + Format::kBytes, again));
  }
}

TEST(BlockFormats, PackUndoesUnpack) {
  expect_pack_undoes_unpack<format::Q4_0, Codes32>({0});
  expect_pack_undoes_unpack<format::Q4_1, Codes32>({0, 2});
  expect_pack_undoes_unpack<format::Q5_0, Codes32>({0});
  expect_pack_undoes_unpack<format::Q5_1, Codes32>({0, 2});
  expect_pack_undoes_unpack<format::Q8_0, Codes32>({0});
  expect_pack_undoes_unpack<format::Iq4Nl, Codes32>({0});
  expect_pack_undoes_unpack<format::Q2_K, Codes256>({80, 82});
  expect_pack_undoes_unpack<format::Q3_K, Codes256>({108});
  expect_pack_undoes_unpack<format::Q4_K, Codes256>({0, 2});
  expect_pack_undoes_unpack<format::Q5_K, Codes256>({0, 2});
  expect_pack_undoes_unpack<format::Q6_K, Codes256>({208});
  expect_pack_undoes_unpack<format::Iq4Xs, Codes256>({0});
}

}  // namespace
}  // namespace quire
