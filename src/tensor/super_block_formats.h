#pragma once

#include "tensor/block_codes.h"

// Formats in blocks of 256 with sub-blocks, whose scales are codes themselves.

namespace quire::format {

// Eight 6-bit scales and minimums in 12 bytes: the first four whole, the others' low four bits in the last
// four bytes and their high two bits above the first ones.
inline void unpack_scales_and_mins(const uint8_t* in, Codes256& out) {
  for (size_t j = 0; j < 4; ++j) {
    out.sub_scales[j] = int8_t(in[j] & 63);
    out.sub_mins[j] = int8_t(in[j + 4] & 63);
    out.sub_scales[j + 4] = int8_t((in[j + 8] & 15) | ((in[j] >> 6) << 4));
    out.sub_mins[j + 4] = int8_t((in[j + 8] >> 4) | ((in[j + 4] >> 6) << 4));
  }
}

inline void pack_scales_and_mins(const Codes256& in, uint8_t* out) {
  for (size_t j = 0; j < 4; ++j) {
    const int scale = uint8_t(in.sub_scales[j + 4]);
    const int min = uint8_t(in.sub_mins[j + 4]);
    out[j] = uint8_t(in.sub_scales[j] | ((scale >> 4) << 6));
    out[j + 4] = uint8_t(in.sub_mins[j] | ((min >> 4) << 6));
    out[j + 8] = uint8_t((scale & 15) | ((min & 15) << 4));
  }
}

// Four planes of 2-bit fields in 64 bytes: code 128 g + 32 p + i is field p of byte 32 g + i. These are the
// fields of 16 codes, `first` a multiple of 16.
inline U8x16 quarters(const uint8_t* in, size_t first) {
  return (load16(in + first / 128 * 32 + first % 32) >> uint8_t(first / 32 % 4 * 2)) & 3;
}

// 32 bytes in which bit k of byte i belongs to code 32 k + i: those of 16 codes, 0 or 1.
inline U8x16 bits(const uint8_t* in, size_t first) {
  return (load16(in + first % 32) >> uint8_t(first / 32)) & 1;
}

// Takes the low two bits of each code.
inline void pack_quarters(const int8_t* codes, uint8_t* out) {
  for (size_t g = 0; g < 2; ++g) {
    for (size_t i = 0; i < 32; ++i) {
      uint8_t byte = 0;
      for (size_t p = 0; p < 4; ++p) byte |= uint8_t((codes[128 * g + 32 * p + i] & 3) << (2 * p));
      out[32 * g + i] = byte;
    }
  }
}

// {16 x (4-bit scale, 4-bit minimum), 64 quarter bytes, f16 scale, f16 scale of minimums}
struct Q2_K {
  static constexpr size_t kValues = 256, kBytes = 84, kSubValues = 16;
  static constexpr bool kHasMin = true;
  static void unpack(const uint8_t* block, Codes256& out) {
    out.scale = load_f16(block + 80);
    out.min_scale = load_f16(block + 82);
    for (size_t j = 0; j < 16; ++j) {
      out.sub_scales[j] = int8_t(block[j] & 15);
      out.sub_mins[j] = int8_t(block[j] >> 4);
    }
    for (size_t i = 0; i < 256; i += 16) store16(as_signed(quarters(block + 16, i)), out.codes + i);
  }
  static void pack(const Codes256& in, uint8_t* block) {
    for (size_t j = 0; j < 16; ++j) block[j] = uint8_t(in.sub_scales[j] | (in.sub_mins[j] << 4));
    pack_quarters(in.codes, block + 16);
    store_f16(in.scale, block + 80);
    store_f16(in.min_scale, block + 82);
  }
};

// {32 bytes of third bits, 64 quarter bytes, 16 6-bit scales, f16 scale}; a third bit unset means -4, and the
// scales are stored plus 32: low four bits in 8 half bytes, high two bits in 4 quarter bytes.
struct Q3_K {
  static constexpr size_t kValues = 256, kBytes = 110, kSubValues = 16;
  static constexpr bool kHasMin = false;
  static void unpack(const uint8_t* block, Codes256& out) {
    out.scale = load_f16(block + 108);
    const uint8_t* scales = block + 96;
    for (size_t j = 0; j < 16; ++j) {
      const int low = j < 8 ? scales[j] & 15 : scales[j - 8] >> 4;
      const int high = (scales[8 + j % 4] >> (2 * (j / 4))) & 3;
      out.sub_scales[j] = int8_t((low | (high << 4)) - 32);
    }
    for (size_t i = 0; i < 256; i += 16) {
      store16(as_signed(quarters(block + 32, i) | (bits(block, i) << 2)) - 4, out.codes + i);
    }
  }
  static void pack(const Codes256& in, uint8_t* block) {
    std::memset(block, 0, kBytes);
    int8_t shifted[256];
    for (size_t i = 0; i < 256; ++i) shifted[i] = int8_t(in.codes[i] + 4);
    for (size_t i = 0; i < 256; ++i) block[i % 32] |= uint8_t((shifted[i] >> 2) << (i / 32));
    pack_quarters(shifted, block + 32);
    uint8_t* scales = block + 96;
    for (size_t j = 0; j < 16; ++j) {
      const int scale = in.sub_scales[j] + 32;
      scales[j % 8] |= uint8_t((scale & 15) << (j < 8 ? 0 : 4));
      scales[8 + j % 4] |= uint8_t((scale >> 4) << (2 * (j / 4)));
    }
    store_f16(in.scale, block + 108);
  }
};

// {f16 scale, f16 scale of minimums, 8 6-bit scales and minimums, 4 x 32 half bytes}
struct Q4_K {
  static constexpr size_t kValues = 256, kBytes = 144, kSubValues = 32;
  static constexpr bool kHasMin = true;
  static void unpack(const uint8_t* block, Codes256& out) {
    out.scale = load_f16(block);
    out.min_scale = load_f16(block + 2);
    unpack_scales_and_mins(block + 4, out);
    for (size_t g = 0; g < 4; ++g) unpack_halves<32>(block + 16 + 32 * g, out.codes + 64 * g);
  }
  static void pack(const Codes256& in, uint8_t* block) {
    store_f16(in.scale, block);
    store_f16(in.min_scale, block + 2);
    pack_scales_and_mins(in, block + 4);
    for (size_t g = 0; g < 4; ++g) pack_halves<32>(in.codes + 64 * g, block + 16 + 32 * g);
  }
};

// Q4_K with 32 bytes of fifth bits before the half bytes: bit k of byte i belongs to code 32 k + i.
struct Q5_K {
  static constexpr size_t kValues = 256, kBytes = 176, kSubValues = 32;
  static constexpr bool kHasMin = true;
  static void unpack(const uint8_t* block, Codes256& out) {
    out.scale = load_f16(block);
    out.min_scale = load_f16(block + 2);
    unpack_scales_and_mins(block + 4, out);
    for (size_t i = 0; i < 256; i += 16) {
      const U8x16 halves = load16(block + 48 + i / 64 * 32 + i % 32);
      const U8x16 low = i % 64 < 32 ? halves & 15 : halves >> 4;
      store16(as_signed(low | (bits(block + 16, i) << 4)), out.codes + i);
    }
  }
  static void pack(const Codes256& in, uint8_t* block) {
    store_f16(in.scale, block);
    store_f16(in.min_scale, block + 2);
    pack_scales_and_mins(in, block + 4);
    std::memset(block + 16, 0, 32);
    for (size_t i = 0; i < 256; ++i) block[16 + i % 32] |= uint8_t((in.codes[i] >> 4) << (i / 32));
    for (size_t g = 0; g < 4; ++g) pack_halves<32>(in.codes + 64 * g, block + 48 + 32 * g);
  }
};

// {2 x 64 half bytes, 64 quarter bytes of the fifth and sixth bits, 16 int8 scales, f16 scale}
struct Q6_K {
  static constexpr size_t kValues = 256, kBytes = 210, kSubValues = 16;
  static constexpr bool kHasMin = false;
  static void unpack(const uint8_t* block, Codes256& out) {
    out.scale = load_f16(block + 208);
    std::memcpy(out.sub_scales, block + 192, 16);
    for (size_t i = 0; i < 256; i += 16) {
      const U8x16 halves = load16(block + i / 128 * 64 + i % 64);
      const U8x16 low = i % 128 < 64 ? halves & 15 : halves >> 4;
      store16(as_signed(low | (quarters(block + 128, i) << 4)) - 32, out.codes + i);
    }
  }
  static void pack(const Codes256& in, uint8_t* block) {
    int8_t shifted[256];
    for (size_t i = 0; i < 256; ++i) shifted[i] = int8_t(in.codes[i] + 32);
    for (size_t g = 0; g < 2; ++g) pack_halves<64>(shifted + 128 * g, block + 64 * g);
    for (int8_t& code : shifted) code = int8_t(code >> 4);
    pack_quarters(shifted, block + 128);
    std::memcpy(block + 192, in.sub_scales, 16);
    store_f16(in.scale, block + 208);
  }
};

// {f16 scale, u16 high two bits of 8 scales, 4 half bytes of their low bits, 8 x 16 half bytes}; scales are
// stored plus 32, codes go through the table.
struct Iq4Xs {
  static constexpr size_t kValues = 256, kBytes = 136, kSubValues = 32;
  static constexpr bool kHasMin = false;
  static void unpack(const uint8_t* block, Codes256& out) {
    out.scale = load_f16(block);
    const uint32_t high = load<uint16_t>(block + 2);
    for (size_t j = 0; j < 8; ++j) {
      const uint32_t low = (block[4 + j / 2] >> (4 * (j % 2))) & 15u;
      out.sub_scales[j] = int8_t(int(low | (((high >> (2 * j)) & 3) << 4)) - 32);
      unpack_iq4(block + 8 + 16 * j, out.codes + 32 * j);
    }
  }
  static void pack(const Codes256& in, uint8_t* block) {
    store_f16(in.scale, block);
    std::memset(block + 4, 0, 4);
    uint32_t high = 0;
    for (size_t j = 0; j < 8; ++j) {
      const uint32_t scale = uint32_t(in.sub_scales[j] + 32);
      block[4 + j / 2] |= uint8_t((scale & 15) << (4 * (j % 2)));
      high |= (scale >> 4) << (2 * j);
      for (size_t i = 0; i < 16; ++i) {
        const int8_t* codes = in.codes + 32 * j;
        block[8 + 16 * j + i] = uint8_t(iq4_index(codes[i]) | (iq4_index(codes[i + 16]) << 4));
      }
    }
    store(uint16_t(high), block + 2);
  }
};
}  // namespace quire::format
