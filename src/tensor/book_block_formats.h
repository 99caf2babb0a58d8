#pragma once

#include "tensor/block_codes.h"
#include "tensor/code_books.h"

// The IQ types in blocks of 256: codes name entries of a code book, which hold magnitudes of eight or four values, and signs are
// kept beside them. Sub-scales are odd numbers, 2 s + 1. An index has as many bits as its book wants, so any bytes are a block.

namespace quire::format {

// What a block with a book is packed from.
struct BookCodes {
  float scale;             // of the block
  uint8_t sub_scales[16];  // s of 2 s + 1
  uint16_t entries[64];    // of eight values each, or of four
  uint8_t signs[32];       // of eight values; of IQ1 1: an eighth less, 0: an eighth more
};

// `kShare`: what the block's scale is multiplied with, so that sub-scales and codes are whole numbers.
template <size_t bytes, size_t sub_values, int share>
struct BookBlock {
  static constexpr size_t kValues = 256, kBytes = bytes, kSubValues = sub_values;
  static constexpr bool kHasMin = false;
  static constexpr float kShare = 1.0f / share;
};

// Seven bits of signs; the eighth makes their number even.
inline uint32_t even_signs(uint32_t seven) {
  return seven | (uint32_t(std::popcount(seven) & 1) << 7);
}

// Sixteen magnitudes, as two times eight bytes, with the signs of sixteen bits.
inline void put_signed(uint64_t first, uint64_t second, uint32_t signs, int8_t* codes) {
  struct Pair {
    uint64_t low, high;
  };
  constexpr U8x16 kBit = {1, 2, 4, 8, 16, 32, 64, 128, 1, 2, 4, 8, 16, 32, 64, 128};
  constexpr uint64_t kEverywhere = 0x0101010101010101u;
  const Pair spread = {(signs & 255) * kEverywhere, (signs >> 8 & 255) * kEverywhere};
  const I8x16 is_negative = (std::bit_cast<U8x16>(spread) & kBit) != 0;
  const I8x16 magnitudes = std::bit_cast<I8x16>(Pair{first, second});
  store16((magnitudes ^ is_negative) - is_negative, codes);
}

inline uint64_t join(uint32_t low, uint32_t high) {
  return low | uint64_t(high) << 32;
}

template <size_t kBytes>
void pack_nibbles(const uint8_t* values, uint8_t* out) {
  for (size_t i = 0; i < kBytes; ++i) out[i] = uint8_t(values[2 * i] | values[2 * i + 1] << 4);
}
inline int8_t odd_scale(uint32_t bits) {
  return int8_t(2 * bits + 1);
}

// {f16 scale, 8 x (4 bytes of indexes, u32: four times seven signs, four bits of scale)}
struct Iq2Xxs : BookBlock<66, 32, 8> {
  static void unpack(const uint8_t* block, Codes256& out) {
    out.scale = load_f16(block);
    for (size_t j = 0; j < 8; ++j) {
      const uint8_t* index = block + 2 + 8 * j;
      const uint32_t word = load<uint32_t>(index + 4);
      out.sub_scales[j] = odd_scale(word >> 28);
      for (uint32_t g = 0; g < 4; g += 2) {
        const uint32_t signs = even_signs(word >> (7 * g) & 127) | even_signs(word >> (7 * g + 7) & 127) << 8;
        put_signed(kBookIq2Xxs[index[g]], kBookIq2Xxs[index[g + 1]], signs, out.codes + 32 * j + 8 * g);
      }
    }
  }
  static void pack(const BookCodes& in, uint8_t* block) {
    store_f16(in.scale, block);
    for (size_t j = 0; j < 8; ++j) {
      uint32_t word = uint32_t(in.sub_scales[j]) << 28;
      for (size_t g = 0; g < 4; ++g) {
        block[2 + 8 * j + g] = uint8_t(in.entries[4 * j + g]);
        word |= uint32_t(in.signs[4 * j + g] & 127) << (7 * g);
      }
      store(word, block + 6 + 8 * j);
    }
  }
};

// {f16 scale, 32 x u16: index of nine bits and seven signs, 8 bytes of 16 scales}
struct Iq2Xs : BookBlock<74, 16, 8> {
  static void unpack(const uint8_t* block, Codes256& out) {
    out.scale = load_f16(block);
    for (size_t j = 0; j < 16; ++j) {
      const uint32_t first = load<uint16_t>(block + 2 + 4 * j), second = load<uint16_t>(block + 4 + 4 * j);
      out.sub_scales[j] = odd_scale((block[66 + j / 2] >> (4 * (j % 2))) & 15u);
      put_signed(kBookIq2Xs[first & 511], kBookIq2Xs[second & 511],
                 even_signs(first >> 9) | even_signs(second >> 9) << 8, out.codes + 16 * j);
    }
  }
  static void pack(const BookCodes& in, uint8_t* block) {
    store_f16(in.scale, block);
    for (size_t k = 0; k < 32; ++k)
      store(uint16_t(in.entries[k] | (in.signs[k] & 127) << 9), block + 2 + 2 * k);
    pack_nibbles<8>(in.sub_scales, block + 66);
  }
};

// {f16 scale, 32 low bytes of indexes, 32 bytes of signs, 8 bytes of indexes' high two bits, 8 bytes of 16 scales}
struct Iq2S : BookBlock<82, 16, 8> {
  static void unpack(const uint8_t* block, Codes256& out) {
    out.scale = load_f16(block);
    const auto entry = [block](size_t k) {
      return kBookIq2S[block[2 + k] | ((block[66 + k / 4] >> (2 * (k % 4))) & 3u) << 8];
    };
    for (size_t j = 0; j < 16; ++j) {
      out.sub_scales[j] = odd_scale((block[74 + j / 2] >> (4 * (j % 2))) & 15u);
      put_signed(entry(2 * j), entry(2 * j + 1), load<uint16_t>(block + 34 + 2 * j), out.codes + 16 * j);
    }
  }
  static void pack(const BookCodes& in, uint8_t* block) {
    std::memset(block, 0, kBytes);
    store_f16(in.scale, block);
    for (size_t k = 0; k < 32; ++k) {
      block[2 + k] = uint8_t(in.entries[k]);
      block[34 + k] = in.signs[k];
      block[66 + k / 4] |= uint8_t((in.entries[k] >> 8) << (2 * (k % 4)));
    }
    pack_nibbles<8>(in.sub_scales, block + 74);
  }
};

// {f16 scale, 64 bytes of indexes, 8 x u32: four times seven signs, four bits of scale}
struct Iq3Xxs : BookBlock<98, 32, 4> {
  static void unpack(const uint8_t* block, Codes256& out) {
    out.scale = load_f16(block);
    for (size_t j = 0; j < 8; ++j) {
      const uint8_t* index = block + 2 + 8 * j;
      const uint32_t word = load<uint32_t>(block + 66 + 4 * j);
      const auto eight = [index](size_t g) {
        return join(kBookIq3Xxs[index[2 * g]], kBookIq3Xxs[index[2 * g + 1]]);
      };
      out.sub_scales[j] = odd_scale(word >> 28);
      for (uint32_t g = 0; g < 4; g += 2) {
        const uint32_t signs = even_signs(word >> (7 * g) & 127) | even_signs(word >> (7 * g + 7) & 127) << 8;
        put_signed(eight(g), eight(g + 1), signs, out.codes + 32 * j + 8 * g);
      }
    }
  }
  static void pack(const BookCodes& in, uint8_t* block) {
    store_f16(in.scale, block);
    for (size_t k = 0; k < 64; ++k) block[2 + k] = uint8_t(in.entries[k]);
    for (size_t j = 0; j < 8; ++j) {
      uint32_t word = uint32_t(in.sub_scales[j]) << 28;
      for (size_t g = 0; g < 4; ++g) word |= uint32_t(in.signs[4 * j + g] & 127) << (7 * g);
      store(word, block + 66 + 4 * j);
    }
  }
};

// {f16 scale, 64 low bytes of indexes, 8 bytes of their ninth bits, 32 bytes of signs, 4 bytes of 8 scales}
struct Iq3S : BookBlock<110, 32, 1> {
  static void unpack(const uint8_t* block, Codes256& out) {
    out.scale = load_f16(block);
    const auto entry = [block](size_t k) {
      return kBookIq3S[block[2 + k] | ((block[66 + k / 8] >> (k % 8)) & 1u) << 8];
    };
    for (size_t j = 0; j < 8; ++j) out.sub_scales[j] = odd_scale((block[106 + j / 2] >> (4 * (j % 2))) & 15u);
    for (size_t i = 0; i < 16; ++i) {
      put_signed(join(entry(4 * i), entry(4 * i + 1)), join(entry(4 * i + 2), entry(4 * i + 3)),
                 load<uint16_t>(block + 74 + 2 * i), out.codes + 16 * i);
    }
  }
  static void pack(const BookCodes& in, uint8_t* block) {
    std::memset(block, 0, kBytes);
    store_f16(in.scale, block);
    for (size_t k = 0; k < 64; ++k) {
      block[2 + k] = uint8_t(in.entries[k]);
      block[66 + k / 8] |= uint8_t((in.entries[k] >> 8) << (k % 8));
    }
    std::memcpy(block + 74, in.signs, 32);
    pack_nibbles<4>(in.sub_scales, block + 106);
  }
};

// Codes are eight times -1, 0 or 1, and one more or less.
inline void put_ternary(uint32_t index, bool less, int8_t* codes) {
  const uint64_t entry = kBookIq1[index];
  const int move = less ? -9 : -7;
  for (uint32_t i = 0; i < 8; ++i) codes[i] = int8_t(int(entry >> (8 * i) & 255) + move);
}

// {f16 scale, 32 low bytes of indexes, 8 x u16: four times three high bits, three bits of scale, the sign of an eighth}
struct Iq1S : BookBlock<50, 32, 8> {
  static void unpack(const uint8_t* block, Codes256& out) {
    out.scale = load_f16(block);
    for (size_t j = 0; j < 8; ++j) {
      const uint32_t word = load<uint16_t>(block + 34 + 2 * j);
      out.sub_scales[j] = odd_scale(word >> 12 & 7);
      for (uint32_t g = 0; g < 4; ++g) {
        put_ternary(block[2 + 4 * j + g] | (word >> (3 * g) & 7) << 8, (word & 0x8000) != 0,
                    out.codes + 32 * j + 8 * g);
      }
    }
  }
  static void pack(const BookCodes& in, uint8_t* block) {
    store_f16(in.scale, block);
    for (size_t j = 0; j < 8; ++j) {
      uint32_t word = uint32_t(in.sub_scales[j]) << 12 | uint32_t(in.signs[4 * j] != 0 ? 0x8000 : 0);
      for (size_t g = 0; g < 4; ++g) {
        block[2 + 4 * j + g] = uint8_t(in.entries[4 * j + g]);
        word |= uint32_t(in.entries[4 * j + g] >> 8) << (3 * g);
      }
      store(uint16_t(word), block + 34 + 2 * j);
    }
  }
};

// {32 low bytes of indexes, 16 bytes: twice three high bits and the sign of an eighth, 4 x u16: four scales of three bits, and
// four bits of the block's f16 scale, the lowest first}
struct Iq1M : BookBlock<56, 16, 8> {
  static void unpack(const uint8_t* block, Codes256& out) {
    uint32_t scale = 0;
    for (uint32_t k = 0; k < 4; ++k) {
      const uint32_t word = load<uint16_t>(block + 48 + 2 * k);
      scale |= (word >> 12) << (4 * k);
      for (uint32_t i = 0; i < 4; ++i) out.sub_scales[4 * k + i] = odd_scale(word >> (3 * i) & 7);
    }
    out.scale = f16_to_f32(uint16_t(scale));
    for (size_t k = 0; k < 32; ++k) {
      const uint32_t four = (block[32 + k / 2] >> (4 * (k % 2))) & 15u;
      put_ternary(block[k] | (four & 7) << 8, (four & 8) != 0, out.codes + 8 * k);
    }
  }
  static void pack(const BookCodes& in, uint8_t* block) {
    std::memset(block, 0, kBytes);
    for (size_t k = 0; k < 32; ++k) {
      const uint32_t four = uint32_t(in.entries[k] >> 8) | (in.signs[k] != 0 ? 8u : 0u);
      block[k] = uint8_t(in.entries[k]);
      block[32 + k / 2] |= uint8_t(four << (4 * (k % 2)));
    }
    const uint32_t scale = f32_to_f16(in.scale);
    for (size_t k = 0; k < 4; ++k) {
      uint32_t word = (scale >> (4 * k) & 15) << 12;
      for (size_t i = 0; i < 4; ++i) word |= uint32_t(in.sub_scales[4 * k + i]) << (3 * i);
      store(uint16_t(word), block + 48 + 2 * k);
    }
  }
};

}  // namespace quire::format
