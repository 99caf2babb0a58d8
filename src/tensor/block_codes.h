#pragma once

#include <algorithm>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>

#include "tensor/float16.h"
#include "tensor/lanes.h"

// What the block formats are made of: codes and scales, and how small codes lie in bytes.

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

// What a format in blocks of 256 has its scale multiplied with, so that sub-scales and codes are whole numbers.
template <class Format>
inline constexpr float kShareOf = 1.0f;
template <class Format>
requires requires {
  Format::kShare;
}
inline constexpr float kShareOf<Format> = Format::kShare;

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
}  // namespace format
}  // namespace quire
