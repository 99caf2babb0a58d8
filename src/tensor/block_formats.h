#pragma once

#include <algorithm>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>

#include "tensor/float16.h"
#include "tensor/lanes.h"

// The block formats of GGUF, each stated once: how its bytes become integer codes and scales, and back.
// Quantization, dequantization and the portable matrix kernels are written over these. Blocks need no
// alignment.

namespace quire {

// A block of 32: value[i] = scale * codes[i], or scale * codes[i] + offset where the format has an offset.
struct Codes32 {
  float scale;
  float offset;
  int8_t codes[32];
};

// A block of 256 in sub-blocks: with j = i / kSubValues, value[i] = (scale * sub_scales[j]) * codes[i],
// less min_scale * sub_mins[j] where the format has minimums.
struct Codes256 {
  float scale;
  float min_scale;
  int8_t sub_scales[16];
  int8_t sub_mins[16];
  int8_t codes[256];
};

namespace format {

template <class T>
T load(const uint8_t* bytes) {
  T value;
  std::memcpy(&value, bytes, sizeof(T));
  return value;
}

template <class T>
void store(T value, uint8_t* bytes) {
  std::memcpy(bytes, &value, sizeof(T));
}

inline float load_f16(const uint8_t* bytes) {
  return f16_to_f32(load<uint16_t>(bytes));
}

inline void store_f16(float value, uint8_t* bytes) {
  store(f32_to_f16(value), bytes);
}

inline I8x16 as_signed(U8x16 lanes) {
  return std::bit_cast<I8x16>(lanes);
}

// Half bytes: code i in the low half of byte i, code i + bytes in the high half; all of them less `kLess`.
template <size_t kBytes, int8_t kLess = 0>
void unpack_halves(const uint8_t* in, int8_t* codes) {
  for (size_t i = 0; i < kBytes; i += 16) {
    const U8x16 halves = load16(in + i);
    store16(as_signed(halves & 15) - kLess, codes + i);
    store16(as_signed(halves >> 4) - kLess, codes + i + kBytes);
  }
}

// Takes the low four bits of each code.
template <size_t kBytes>
void pack_halves(const int8_t* codes, uint8_t* out) {
  for (size_t i = 0; i < kBytes; ++i) {
    out[i] = uint8_t((codes[i] & 15) | ((codes[i + kBytes] & 15) << 4));
  }
}

// 32 half bytes with a fifth bit each (bit i belongs to code i), all less `kLess`.
template <int8_t kLess>
void unpack_fifths(const uint8_t* halves, uint32_t fifth_bits, int8_t* codes) {
  struct Spread {
    uint64_t low, high;
  };
  constexpr U8x16 kBit = {1, 2, 4, 8, 16, 32, 64, 128, 1, 2, 4, 8, 16, 32, 64, 128};
  constexpr uint64_t kEverywhere = 0x0101010101010101u;
  for (uint32_t part = 0; part < 2; ++part) {
    const U8x16 half = part == 0 ? load16(halves) & 15 : load16(halves) >> 4;
    const uint64_t bits = fifth_bits >> (16 * part);
    const Spread spread = {(bits & 255) * kEverywhere, (bits >> 8 & 255) * kEverywhere};
    const I8x16 is_set = (std::bit_cast<U8x16>(spread) & kBit) != 0;
    store16((as_signed(half) | (is_set & 16)) - kLess, codes + 16 * part);
  }
}

inline uint32_t pack_fifth_bits(const int8_t* codes) {
  uint32_t bits = 0;
  for (uint32_t i = 0; i < 32; ++i) bits |= uint32_t((codes[i] >> 4) & 1) << i;
  return bits;
}

// What the 4-bit codes of IQ4 stand for.
inline constexpr int8_t kIq4Values[16] = {-127, -104, -83, -65, -49, -35, -22, -10,
                                          1,    13,   25,  38,  53,  69,  89,  113};

// kIq4Values of 16 half bytes, chosen by one bit after the other.
inline I8x16 iq4_values(U8x16 halves) {
  constexpr const int8_t(&t)[16] = kIq4Values;
  const auto choose = [](I8x16 is_set, I8x16 zero, I8x16 one) { return is_set ? one : zero; };
  const I8x16 bit0 = (halves & 1) != 0, bit1 = (halves & 2) != 0, bit2 = (halves & 4) != 0;
  I8x16 quads[4];
  for (size_t q = 0; q < 4; ++q) {
    const I8x16 even = choose(bit0, I8x16{} + t[4 * q], I8x16{} + t[4 * q + 1]);
    const I8x16 odd = choose(bit0, I8x16{} + t[4 * q + 2], I8x16{} + t[4 * q + 3]);
    quads[q] = choose(bit1, even, odd);
  }
  return choose((halves & 8) != 0, choose(bit2, quads[0], quads[1]), choose(bit2, quads[2], quads[3]));
}

inline void unpack_iq4(const uint8_t* in, int8_t* codes) {
  const U8x16 halves = load16(in);
  store16(iq4_values(halves & 15), codes);
  store16(iq4_values(halves >> 4), codes + 16);
}

// The 4-bit code of one of kIq4Values.
inline uint8_t iq4_index(int8_t value) {
  return uint8_t(std::lower_bound(kIq4Values, kIq4Values + 16, value) - kIq4Values);
}

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

}  // namespace format
}  // namespace quire
