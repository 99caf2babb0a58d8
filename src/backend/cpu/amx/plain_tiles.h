#pragma once

#include <cstddef>
#include <cstdint>

// Tiles of int8 in plain code, for tests of what is compiled for AVX-512 and AMX on machines without AMX. Each file has tiles of its own.

namespace quire {
namespace {

// Eight tiles that hold what AMX would, and refuse what it would refuse.
struct PlainTiles {
  static inline thread_local int8_t tiles[8][16][64];
  static inline thread_local bool is_configured = false;

  static void check(bool is_right) {
    if (!is_right) __builtin_trap();
  }
  static void configure() {
    check(!is_configured);
    is_configured = true;
  }
  static void release() {
    check(is_configured);
    is_configured = false;
  }
  template <size_t kTile>
  static void zero() {
    check(is_configured);
    __builtin_memset(tiles[kTile], 0, sizeof(tiles[kTile]));
  }
  template <size_t kTile>
  static void load(const void* rows, size_t stride_bytes) {
    check(is_configured);
    for (size_t r = 0; r < 16; ++r)
      __builtin_memcpy(tiles[kTile][r], static_cast<const int8_t*>(rows) + r * stride_bytes, 64);
  }
  template <size_t kTile>
  static void store(void* rows, size_t stride_bytes) {
    check(is_configured);
    for (size_t r = 0; r < 16; ++r)
      __builtin_memcpy(static_cast<int8_t*>(rows) + r * stride_bytes, tiles[kTile][r], 64);
  }

  // sums[m][n] += the products of 64 columns. `Second`: as which the second operand's bytes are read.
  template <size_t kSums, size_t kFirst, size_t kSecond, class Second>
  static void add_products() {
    check(is_configured);
    for (size_t m = 0; m < 16; ++m) {
      for (size_t n = 0; n < 16; ++n) {
        int32_t sum;
        __builtin_memcpy(&sum, tiles[kSums][m] + 4 * n, sizeof(sum));
        for (size_t k = 0; k < 64; ++k)
          sum += int32_t(tiles[kFirst][m][k]) * int32_t(Second(tiles[kSecond][k / 4][4 * n + k % 4]));
        __builtin_memcpy(tiles[kSums][m] + 4 * n, &sum, sizeof(sum));
      }
    }
  }
};

}  // namespace
}  // namespace quire
