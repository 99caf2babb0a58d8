#pragma once

#include <array>
#include <bit>
#include <cstdint>

namespace quire::grammar {

// A set of bytes.
struct ByteSet {
  std::array<uint64_t, 4> words{};

  static ByteSet of(uint8_t first, uint8_t last) {
    ByteSet set;
    for (int byte = first; byte <= last; ++byte) set.add(uint8_t(byte));
    return set;
  }
  void add(uint8_t byte) { words[byte / 64] |= uint64_t(1) << byte % 64; }
  bool has(uint8_t byte) const { return (words[byte / 64] >> byte % 64 & 1) != 0; }
  bool empty() const { return (words[0] | words[1] | words[2] | words[3]) == 0; }
  ByteSet complement() const {
    ByteSet others;
    for (int i = 0; i < 4; ++i) others.words[i] = ~words[i];
    return others;
  }
  // Calls `take` with each byte, in order.
  template <class Take>
  void each(const Take& take) const {
    for (int i = 0; i < 4; ++i) {
      for (uint64_t left = words[i]; left != 0; left &= left - 1)
        take(uint8_t(64 * i + std::countr_zero(left)));
    }
  }
  ByteSet operator|(const ByteSet& other) const {
    ByteSet both;
    for (int i = 0; i < 4; ++i) both.words[i] = words[i] | other.words[i];
    return both;
  }
  ByteSet operator&(const ByteSet& other) const {
    ByteSet both;
    for (int i = 0; i < 4; ++i) both.words[i] = words[i] & other.words[i];
    return both;
  }
  bool operator==(const ByteSet&) const = default;
};

}  // namespace quire::grammar
