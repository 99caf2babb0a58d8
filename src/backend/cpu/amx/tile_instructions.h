#pragma once

#include <cstddef>
#include <cstdint>

// The instructions of AMX that every machine of tiles here shares. They are written out, so that a file needs no option of
// the compiler, whose own functions want the number of a tile as a literal.

namespace quire {
namespace {

// What `ldtilecfg` reads.
struct alignas(64) TileConfig {
  uint8_t palette = 1;
  uint8_t start_row = 0;
  uint8_t reserved[14] = {};
  uint16_t row_bytes[16] = {};
  uint8_t rows[16] = {};

  void set(size_t tile, size_t tile_rows, size_t tile_row_bytes) {
    rows[tile] = uint8_t(tile_rows);
    row_bytes[tile] = uint16_t(tile_row_bytes);
  }
  void load() const { asm volatile("ldtilecfg %0" : : "m"(*this)); }
};
static_assert(sizeof(TileConfig) == 64);

struct TileInstructions {
  static void release() { asm volatile("tilerelease" : : : "memory"); }

  template <size_t kTile>
  static inline __attribute__((always_inline)) void zero() {
    asm volatile("tilezero %%tmm%c0" : : "i"(kTile));
  }
  // All of memory is named because rows lie apart.
  template <size_t kTile>
  static inline __attribute__((always_inline)) void load(const void* rows, size_t stride_bytes) {
    asm volatile("tileloadd (%0,%1,1), %%tmm%c2" : : "r"(rows), "r"(stride_bytes), "i"(kTile) : "memory");
  }
  template <size_t kTile>
  static inline __attribute__((always_inline)) void store(void* rows, size_t stride_bytes) {
    asm volatile("tilestored %%tmm%c2, (%0,%1,1)" : : "r"(rows), "r"(stride_bytes), "i"(kTile) : "memory");
  }
};

// Products of bf16, of even and odd columns each for themselves; then both are added to the sums.
struct Bf16TileInstructions : TileInstructions {
  template <size_t kSums, size_t kA, size_t kB>
  static inline __attribute__((always_inline)) void multiply() {
    asm volatile("tdpbf16ps %%tmm%c2, %%tmm%c1, %%tmm%c0" : : "i"(kSums), "i"(kA), "i"(kB));
  }
};

}  // namespace
}  // namespace quire
