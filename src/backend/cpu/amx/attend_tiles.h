// Attention's products with rows of bf16 by a machine that has eight tiles:
//
//   struct Machine {
//     static void configure(size_t queries);  // as tile_rows and tile_row_bytes say
//     static void release();
//     template <size_t kTile> static void zero();
//     template <size_t kTile> static void load(const void* rows, size_t stride_bytes);
//     template <size_t kTile> static void store(void* rows, size_t stride_bytes);
//     template <size_t kSums, size_t kA, size_t kB> static void multiply();  // sums += a * b, over pairs of bf16
//     template <size_t N> static void transpose(const float* shares, uint32_t (*out)[16]);  // of [16, N] to [N, 16]
//   };
//
// Included by files that are compiled for different instruction sets, so nothing here may have a name that the linker sees.
//
// Keys are the first operand as they stand in the page, [16 keys][32 columns]; queries the second, in pairs of columns,
// [16 pairs][queries][2].
//
// Values are the second operand as they stand in the page, too. A row of it is meant to be pairs of keys, and here is pairs of
// columns of one key. So a share stands beside a zero: first, and the sums are those of the even columns; or second, and they are
// those of the odd ones. That is twice the products, of which there are few, and spares a change of order of all values.
#pragma once

#include "backend/cpu/attention/attend_bf16.h"

namespace quire {
namespace {

// A tile that holds something costs other tiles, for a thread that shares its core has hardly more than it can name. So what is
// no longer needed is set to zero, which takes none.
struct AttendTile {
  enum : size_t { rows, even_scores, odd_scores, queries, even_values, odd_values, shares };
};
constexpr size_t kTileKeys = 16, kTileColumns = 32;

constexpr size_t attend_tile_rows(size_t tile, size_t queries) {
  return tile < AttendTile::even_values ? kTileKeys : queries;
}
constexpr size_t attend_tile_row_bytes(size_t tile, size_t queries) {
  return tile == AttendTile::rows || tile >= AttendTile::even_values ? 64 : 4 * queries;
}

template <class Machine>
struct TileBf16 {
  static constexpr bool kPresent = true;
  using T = AttendTile;

  static constexpr bool takes(size_t dim, size_t page_tokens) {
    return dim % kTileColumns == 0 && dim <= kMostBf16Dim && page_tokens == 2 * kTileKeys;
  }
  // Tiles load a page in two bursts. Fetched a quarter at a time, and two pages ahead, it is there when they do.
  using Fetch = TileFetch;
  static constexpr size_t kPagesAhead = Fetch::kPagesAhead;
  static void begin(size_t count, const std::byte* page, size_t bytes) {
    for (size_t i = 0; i < bytes; i += 64) __builtin_prefetch(page + i);
    Machine::configure(count <= 4 ? 4 : count <= 8 ? 8 : 16);
  }
  static void end() { Machine::release(); }

  template <size_t N>
  static constexpr size_t place(size_t lane, size_t d) {
    return (d / 2 * N + lane) * 2 + d % 2;
  }

  template <size_t N>
  static void score(const uint16_t* queries, const PageRows& keys, size_t dim, size_t, size_t, float* out) {
    const size_t half = kTileKeys * keys.row_bytes;
    Machine::template zero<T::even_scores>();
    Machine::template zero<T::odd_scores>();
    for (size_t d = 0; d < dim; d += kTileColumns) {
      Machine::template load<T::queries>(queries + d * N, 4 * N);
      Machine::template load<T::rows>(keys.bytes + 2 * d, keys.row_bytes);
      Machine::template multiply<T::even_scores, T::rows, T::queries>();
      Machine::template load<T::rows>(keys.bytes + half + 2 * d, keys.row_bytes);
      Machine::template multiply<T::odd_scores, T::rows, T::queries>();
    }
    Machine::template store<T::even_scores>(out, 4 * N);
    Machine::template store<T::odd_scores>(out + kTileKeys * N, 4 * N);
    Machine::template zero<T::even_scores>();
    Machine::template zero<T::odd_scores>();
    Machine::template zero<T::queries>();
  }

  template <size_t N>
  static void add_values(const float* shares, const PageRows& rows, size_t dim, float* out, size_t stride) {
    alignas(64) uint32_t odd[2 * N][16], even[2 * N][16];
    Machine::template transpose<N>(shares, odd);
    Machine::template transpose<N>(shares + kTileKeys * N, odd + N);
    for (size_t i = 0; i < 2 * N; ++i) {
      for (size_t k = 0; k < 16; ++k) even[i][k] = odd[i][k] >> 16;
    }
    const size_t half = kTileKeys * rows.row_bytes;
    for (size_t d = 0; d < dim; d += kTileColumns) {
      Machine::template load<T::even_values>(out + d, 4 * stride);
      Machine::template load<T::odd_values>(out + d + 16, 4 * stride);
      for (size_t i = 0; i < 2; ++i) {
        Machine::template load<T::rows>(rows.bytes + i * half + 2 * d, rows.row_bytes);
        Machine::template load<T::shares>(even + i * N, 64);
        Machine::template multiply<T::even_values, T::shares, T::rows>();
        Machine::template load<T::shares>(odd + i * N, 64);
        Machine::template multiply<T::odd_values, T::shares, T::rows>();
      }
      Machine::template store<T::even_values>(out + d, 4 * stride);
      Machine::template store<T::odd_values>(out + d + 16, 4 * stride);
    }
    Machine::template zero<T::even_values>();
    Machine::template zero<T::odd_values>();
    Machine::template zero<T::shares>();
  }

  static void put_in_order(float* sums, size_t dim) {
    for (float* at = sums; at < sums + dim; at += kTileColumns) {
      float ordered[kTileColumns];
      for (size_t i = 0; i < 16; ++i) {
        ordered[2 * i] = at[i];
        ordered[2 * i + 1] = at[16 + i];
      }
      std::memcpy(at, ordered, sizeof(ordered));
    }
  }
};

}  // namespace
}  // namespace quire
