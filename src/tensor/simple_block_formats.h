#pragma once

#include "tensor/block_codes.h"

// Formats in blocks of 32, each with a scale of its own.

namespace quire::format {

// {f16 scale, 16 half bytes}
struct Q4_0 {
  static constexpr size_t kValues = 32, kBytes = 18;
  static constexpr bool kHasOffset = false;
  static void unpack(const uint8_t* block, Codes32& out) {
    out.scale = load_f16(block);
    unpack_halves<16, 8>(block + 2, out.codes);
  }
  static void pack(const Codes32& in, uint8_t* block) {
    store_f16(in.scale, block);
    int8_t shifted[32];
    for (size_t i = 0; i < 32; ++i) shifted[i] = int8_t(in.codes[i] + 8);
    pack_halves<16>(shifted, block + 2);
  }
};

// {f16 scale, f16 offset, 16 half bytes}
struct Q4_1 {
  static constexpr size_t kValues = 32, kBytes = 20;
  static constexpr bool kHasOffset = true;
  static void unpack(const uint8_t* block, Codes32& out) {
    out.scale = load_f16(block);
    out.offset = load_f16(block + 2);
    unpack_halves<16>(block + 4, out.codes);
  }
  static void pack(const Codes32& in, uint8_t* block) {
    store_f16(in.scale, block);
    store_f16(in.offset, block + 2);
    pack_halves<16>(in.codes, block + 4);
  }
};

// {f16 scale, u32 fifth bits, 16 half bytes}
struct Q5_0 {
  static constexpr size_t kValues = 32, kBytes = 22;
  static constexpr bool kHasOffset = false;
  static void unpack(const uint8_t* block, Codes32& out) {
    out.scale = load_f16(block);
    unpack_fifths<16>(block + 6, load<uint32_t>(block + 2), out.codes);
  }
  static void pack(const Codes32& in, uint8_t* block) {
    store_f16(in.scale, block);
    int8_t shifted[32];
    for (size_t i = 0; i < 32; ++i) shifted[i] = int8_t(in.codes[i] + 16);
    store(pack_fifth_bits(shifted), block + 2);
    pack_halves<16>(shifted, block + 6);
  }
};

// {f16 scale, f16 offset, u32 fifth bits, 16 half bytes}
struct Q5_1 {
  static constexpr size_t kValues = 32, kBytes = 24;
  static constexpr bool kHasOffset = true;
  static void unpack(const uint8_t* block, Codes32& out) {
    out.scale = load_f16(block);
    out.offset = load_f16(block + 2);
    unpack_fifths<0>(block + 8, load<uint32_t>(block + 4), out.codes);
  }
  static void pack(const Codes32& in, uint8_t* block) {
    store_f16(in.scale, block);
    store_f16(in.offset, block + 2);
    store(pack_fifth_bits(in.codes), block + 4);
    pack_halves<16>(in.codes, block + 8);
  }
};

// {f16 scale, 32 int8}
struct Q8_0 {
  static constexpr size_t kValues = 32, kBytes = 34;
  static constexpr bool kHasOffset = false;
  static void unpack(const uint8_t* block, Codes32& out) {
    out.scale = load_f16(block);
    std::memcpy(out.codes, block + 2, 32);
  }
  static void pack(const Codes32& in, uint8_t* block) {
    store_f16(in.scale, block);
    std::memcpy(block + 2, in.codes, 32);
  }
};

// {f16 scale, 16 half bytes}, codes through a table
struct Iq4Nl {
  static constexpr size_t kValues = 32, kBytes = 18;
  static constexpr bool kHasOffset = false;
  static void unpack(const uint8_t* block, Codes32& out) {
    out.scale = load_f16(block);
    unpack_iq4(block + 2, out.codes);
  }
  static void pack(const Codes32& in, uint8_t* block) {
    store_f16(in.scale, block);
    for (size_t i = 0; i < 16; ++i) {
      block[2 + i] = uint8_t(iq4_index(in.codes[i]) | (iq4_index(in.codes[i + 16]) << 4));
    }
  }
};

// {u8 exponent, 16 half bytes}: e2m1 floats under a power of two. Codes are twice the float so that they are
// whole, and the scale is half the power.
struct Mxfp4 {
  static constexpr size_t kValues = 32, kBytes = 17;
  static constexpr bool kHasOffset = false;
  static float half_power(uint8_t exponent) {  // 2^(exponent - 128); the lowest two are subnormal
    return std::bit_cast<float>(exponent < 2 ? 0x00200000u << exponent : uint32_t(exponent - 1) << 23);
  }
  // 0, 1, 2, 3, 4, 6, 8, 12 and their negatives, without a table: steps of 1, then 2, then 4.
  static constexpr int8_t code(int half) {
    const int m = half & 7;
    const int magnitude = std::max(m, std::max(2 * m - 4, 4 * m - 16));
    return int8_t((half & 8) != 0 ? -magnitude : magnitude);
  }
  static I8x16 codes(U8x16 halves) {
    const I8x16 m = as_signed(halves & 7);
    const I8x16 by_two = m + m - 4, by_four = 4 * m - 16;
    I8x16 magnitude = m > by_two ? m : by_two;
    magnitude = magnitude > by_four ? magnitude : by_four;
    return (halves & 8) != 0 ? -magnitude : magnitude;
  }
  static void unpack(const uint8_t* block, Codes32& out) {
    out.scale = half_power(block[0]);
    const U8x16 halves = load16(block + 1);
    store16(codes(halves & 15), out.codes);
    store16(codes(halves >> 4), out.codes + 16);
  }
};
}  // namespace quire::format
