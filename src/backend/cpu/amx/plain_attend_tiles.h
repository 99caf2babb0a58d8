#pragma once

#include <cstring>
#include <iterator>

#include "backend/cpu/amx/attend_tiles.h"
#include "base/check.h"

namespace quire {
namespace {

// Eight tiles in plain code that hold what AMX would, and refuse what it would refuse: for tests.
struct PlainAttendTiles {
  struct Tile {
    size_t rows, row_bytes;
    uint32_t words[16][16];  // pairs of bf16, or floats
  };
  static inline thread_local Tile tiles[8];
  static inline thread_local bool is_configured = false;

  static void configure(size_t queries) {
    CHECK(!is_configured);
    is_configured = true;
    for (size_t i = 0; i < std::size(tiles); ++i) {
      tiles[i] = {attend_tile_rows(i, queries), attend_tile_row_bytes(i, queries), {}};
      CHECK(tiles[i].rows >= 1 && tiles[i].rows <= 16);
      CHECK(tiles[i].row_bytes % 4 == 0 && tiles[i].row_bytes <= 64);
    }
  }
  static void release() {
    CHECK(is_configured);
    is_configured = false;
  }
  template <size_t kTile>
  static void zero() {
    CHECK(is_configured);
    std::memset(tiles[kTile].words, 0, sizeof(tiles[kTile].words));
  }
  template <size_t kTile>
  static void load(const void* rows, size_t stride_bytes) {
    zero<kTile>();
    for (size_t r = 0; r < tiles[kTile].rows; ++r)
      std::memcpy(tiles[kTile].words[r], static_cast<const std::byte*>(rows) + r * stride_bytes,
                  tiles[kTile].row_bytes);
  }
  template <size_t kTile>
  static void store(void* rows, size_t stride_bytes) {
    CHECK(is_configured);
    for (size_t r = 0; r < tiles[kTile].rows; ++r)
      std::memcpy(static_cast<std::byte*>(rows) + r * stride_bytes, tiles[kTile].words[r],
                  tiles[kTile].row_bytes);
  }
  template <size_t kSums, size_t kA, size_t kB>
  static void multiply() {
    Tile &sums = tiles[kSums], &a = tiles[kA], &b = tiles[kB];
    CHECK(is_configured && sums.rows == a.rows && sums.row_bytes == b.row_bytes && b.rows == a.row_bytes / 4);
    for (size_t m = 0; m < a.rows; ++m) {
      for (size_t n = 0; n < b.row_bytes / 4; ++n) {
        float sum = 0;
        for (size_t k = 0; k < b.rows; ++k)
          sum += lower(a.words[m][k]) * lower(b.words[k][n]) + upper(a.words[m][k]) * upper(b.words[k][n]);
        sum += load_lanes<float>(&sums.words[m][n]);
        std::memcpy(&sums.words[m][n], &sum, sizeof(sum));
      }
    }
  }
  template <size_t N>
  static void transpose(const float* shares, uint32_t (*out)[16]) {
    for (size_t k = 0; k < 16; ++k) {
      for (size_t q = 0; q < N; ++q) std::memcpy(&out[q][k], shares + k * N + q, sizeof(float));
    }
  }

 private:
  static float lower(uint32_t pair) {
    pair <<= 16;
    return load_lanes<float>(&pair);
  }
  static float upper(uint32_t pair) {
    pair &= 0xffff0000u;
    return load_lanes<float>(&pair);
  }
};

}  // namespace
}  // namespace quire
