#pragma once

#include "tensor/block_codes.h"
#include "tensor/simple_block_formats.h"

// Formats of one or two bits with one scale for a whole block: value[i] = scale * codes[i], codes -1 to 2. And NVFP4.

namespace quire::format {

inline int8_t ternary_digit(uint8_t byte,
                            uint32_t power) {  // the byte is a fraction: its next digit is at the top
  return int8_t((uint8_t(byte * power) * 3u >> 8) - 1);
}
inline constexpr uint8_t kPowersOfThree[] = {1, 3, 9, 27, 81};

// {48 bytes of five digits in base 3, 4 bytes of four, f16 scale}; value 32 k + i of the first 160 is digit k of byte i, value
// 160 + 16 k + i that of byte 32 + i, and value 240 + 4 k + i that of byte 48 + i.
struct Tq1_0 {
  static constexpr size_t kValues = 256, kBytes = 54;
  static float unpack(const uint8_t* block, int8_t* codes) {
    for (size_t i = 0; i < 160; ++i) codes[i] = ternary_digit(block[i % 32], kPowersOfThree[i / 32]);
    for (size_t i = 0; i < 80; ++i)
      codes[160 + i] = ternary_digit(block[32 + i % 16], kPowersOfThree[i / 16]);
    for (size_t i = 0; i < 16; ++i) codes[240 + i] = ternary_digit(block[48 + i % 4], kPowersOfThree[i / 4]);
    return load_f16(block + 52);
  }
  static void pack(float scale, const int8_t* codes, uint8_t* block) {
    const auto put = [codes](size_t first, size_t step, size_t digits) {
      uint32_t number = 0;
      for (size_t k = 0; k < 5; ++k)
        number = 3 * number + (k < digits ? uint32_t(codes[first + k * step] + 1) : 0);
      return uint8_t((number * 256 + 242) / 243);
    };
    for (size_t i = 0; i < 32; ++i) block[i] = put(i, 32, 5);
    for (size_t i = 0; i < 16; ++i) block[32 + i] = put(160 + i, 16, 5);
    for (size_t i = 0; i < 4; ++i) block[48 + i] = put(240 + i, 4, 4);
    store_f16(scale, block + 52);
  }
};

// {2 x 32 quarter bytes, f16 scale}: value 128 g + 32 p + i is field p of byte 32 g + i.
struct Tq2_0 {
  static constexpr size_t kValues = 256, kBytes = 66;
  static float unpack(const uint8_t* block, int8_t* codes) {
    for (size_t i = 0; i < 256; ++i)
      codes[i] = int8_t((block[i / 128 * 32 + i % 32] >> (i / 32 % 4 * 2) & 3) - 1);
    return load_f16(block + 64);
  }
  static void pack(float scale, const int8_t* codes, uint8_t* block) {
    std::memset(block, 0, 64);
    for (size_t i = 0; i < 256; ++i)
      block[i / 128 * 32 + i % 32] |= uint8_t((codes[i] + 1) << (i / 32 % 4 * 2));
    store_f16(scale, block + 64);
  }
};

// {f16 scale, 128 bits}: a set bit is 1, another -1.
struct Q1_0 {
  static constexpr size_t kValues = 128, kBytes = 18;
  static float unpack(const uint8_t* block, int8_t* codes) {
    for (size_t i = 0; i < 128; ++i) codes[i] = int8_t(2 * (block[2 + i / 8] >> (i % 8) & 1) - 1);
    return load_f16(block);
  }
  static void pack(float scale, const int8_t* codes, uint8_t* block) {
    store_f16(scale, block);
    std::memset(block + 2, 0, 16);
    for (size_t i = 0; i < 128; ++i) block[2 + i / 8] |= uint8_t((codes[i] > 0 ? 1 : 0) << (i % 8));
  }
};

// {f16 scale, 16 bytes of four neighbours each}
struct Q2_0 {
  static constexpr size_t kValues = 64, kBytes = 18;
  static float unpack(const uint8_t* block, int8_t* codes) {
    for (size_t i = 0; i < 64; ++i) codes[i] = int8_t((block[2 + i / 4] >> (i % 4 * 2) & 3) - 1);
    return load_f16(block);
  }
  static void pack(float scale, const int8_t* codes, uint8_t* block) {
    store_f16(scale, block);
    std::memset(block + 2, 0, 16);
    for (size_t i = 0; i < 64; ++i) block[2 + i / 4] |= uint8_t((codes[i] + 1) << (i % 4 * 2));
  }
};

// A block of NVFP4 with integer codes: value = scales[i / 16] * codes[i].
struct Codes64 {
  float scales[4];
  int8_t codes[64];
};

// {4 scales, 4 x 8 half bytes}: e2m1 floats as in MXFP4, sixteen under a scale of four bits of exponent and three of mantissa, whose
// sign does not count and of whose two NaN one is 0 and the other 480. The low halves are the first eight.
struct Nvfp4 {
  static constexpr size_t kValues = 64, kBytes = 36, kSubValues = 16;
  static constexpr bool kHasOffset = false;
  // A multiple of 2^-10: codes are twice the float.
  static float half_scale(uint8_t bits) {
    const uint32_t exponent = bits >> 3 & 15u, mantissa = bits & 7u;
    if (bits == 0x7f) return 0.0f;
    return exponent == 0 ? float(mantissa) * 0x1p-10f : float((8 + mantissa) << (exponent - 1)) * 0x1p-10f;
  }
  // Without a sign, so that all of them are what four bits of exponent and three of mantissa say: the last one is 480.
  static uint8_t scale_bits(uint8_t bits) { return bits == 0x7f ? uint8_t(0) : bits & 0x7f; }
  static void unpack(const uint8_t* block, Codes64& out) {
    for (size_t j = 0; j < kValues / kSubValues; ++j) {
      out.scales[j] = half_scale(block[j]);
      int8_t* codes = out.codes + kSubValues * j;
      for (size_t i = 0; i < 8; ++i) {
        const int halves = block[4 + 8 * j + i];
        codes[i] = Mxfp4::code(halves & 15);
        codes[8 + i] = Mxfp4::code(halves >> 4);
      }
    }
  }
};

}  // namespace quire::format
