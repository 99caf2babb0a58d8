#pragma once

#include <cstdint>

#include "backend/cuda/attention/attention_decode_fetch.cuh"
#include "backend/cuda/attention/kv_row_pieces.cuh"
#include "backend/cuda/numbers.cuh"

// How the warps of decode read a chunk of keys or of values. A thread (g, t) has four keys of a chunk, numbered 2 * tile + half,
// and of the values' dimensions 2 * kDimTiles; a side says which. Order within a step of a product is free, so codes are read as
// they lie: four neighbours at a time, of which a product takes the first and third and the second and fourth side by side.

namespace quire::cuda {

template <int kHeadDim>
struct DecodeShape {
  static constexpr int kDims = kHeadDim / kDecodeWarps;  // of values, by warp
  static constexpr int kDimTiles = kDims / 16;
  static constexpr uint32_t kHalfBytes = kChunkKeys * 128;
};

struct DecodeThread {
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
};

template <int kColumnTiles>
using ChunkScores = float[kColumnTiles][2][4];
template <int kHeadDim, int kColumnTiles>
using UnitQueries = uint32_t[kColumnTiles][kHeadDim / 16][2];

// Rows of 16-bit numbers, swizzled in halves of 128 bytes.
template <class Number, int kHeadDim>
struct HalfKeys : DecodeThread {
  __device__ __forceinline__ explicit HalfKeys(const DecodeArgs&) {}

  __device__ __forceinline__ int key_of(int tile, int half) const { return tile * 16 + half * 8 + g; }
  __device__ __forceinline__ void load_query(const uint16_t* row, int k, uint32_t (&pairs)[2]) const {
    const auto* query = reinterpret_cast<const uint32_t*>(row);
    pairs[0] = query[8 * k + t];
    pairs[1] = query[8 * k + t + 4];
  }

  template <int kColumnTiles>
  __device__ __forceinline__ void score(ChunkScores<kColumnTiles>& scores, uint32_t chunk,
                                        const UnitQueries<kHeadDim, kColumnTiles>& queries) const {
#pragma unroll
    for (int k = 0; k < kHeadDim / 16; ++k) {
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        const int row = i * 16 + lane % 16, piece = k % 4 * 2 + lane / 16;
        uint32_t a[4];
        ptx::load_matrices(
            a, chunk + k / 4 * DecodeShape<kHeadDim>::kHalfBytes + row * 128 + ((piece ^ (row & 7)) << 4));
#pragma unroll
        for (int n = 0; n < kColumnTiles; ++n)
          Number::mma(scores[n][i], a, queries[n][k][0], queries[n][k][1]);
      }
    }
  }
};

template <class Number, int kHeadDim>
struct HalfValues : DecodeThread {
  using Shape = DecodeShape<kHeadDim>;
  __device__ __forceinline__ explicit HalfValues(const DecodeArgs&) {}

  __device__ __forceinline__ int dim_of(int tile, int half) const {
    return warp * Shape::kDims + tile * 16 + half * 8 + g;
  }
  __device__ __forceinline__ bool needs_rows_for_shares() const { return false; }
  __device__ __forceinline__ float factor_of(uint32_t, int) const { return 1.0f; }
  __device__ __forceinline__ uint16_t rounded(float p, float) const {
    return uint16_t(Number::pack(p, 0.0f));
  }

  // The four registers of a product's rows, for the tile's dimensions and the keys 16k to 16k + 15.
  __device__ __forceinline__ void load(uint32_t (&a)[Shape::kDimTiles][4], uint32_t chunk, int k) const {
    const int row = k * 16 + lane / 16 * 8 + lane % 8;
#pragma unroll
    for (int i = 0; i < Shape::kDimTiles; ++i) {
      const int dim = warp * Shape::kDims + i * 16 + lane / 8 % 2 * 8;
      ptx::load_matrices_transposed(
          a[i], chunk + dim / 64 * Shape::kHalfBytes + row * 128 + ((dim % 64 / 8 ^ (row & 7)) << 4));
    }
  }
  __device__ __forceinline__ static void mma(float (&d)[4], const uint32_t (&a)[4], uint32_t b0,
                                             uint32_t b1) {
    Number::mma(d, a, b0, b1);
  }
};

template <class Number, int kHeadDim>
struct HalfSides {
  using Keys = HalfKeys<Number, kHeadDim>;
  using Values = HalfValues<Number, kHeadDim>;
  static constexpr uint32_t kMergedAtOnce = 4;  // as many as registers allow
};

__device__ __forceinline__ uint32_t shared_word(uint32_t at) {
  uint32_t word;
  asm volatile("ld.shared.u32 %0, [%1];" : "=r"(word) : "r"(at) : "memory");
  return word;
}
__device__ __forceinline__ uint32_t shared_half(uint32_t at) {
  uint16_t half;
  asm volatile("ld.shared.u16 %0, [%1];" : "=h"(half) : "r"(at) : "memory");
  return half;
}
__device__ __forceinline__ uint32_t shared_byte(uint32_t at) {
  uint32_t byte;
  asm volatile("ld.shared.u8 %0, [%1];" : "=r"(byte) : "r"(at) : "memory");
  return byte;
}
__device__ __forceinline__ float shared_f16(uint32_t at) {
  return __half2float(__ushort_as_half(uint16_t(shared_half(at))));
}

// Bytes of a row whose size is 2 more than a multiple of 4: every other row begins in the middle of a word.
__device__ __forceinline__ uint32_t shared_word_of_row(uint32_t at, bool even) {
  if (even) return shared_word(at);
  return __funnelshift_r(shared_word(at - 2), shared_word(at + 2), 16);
}

// The lower or the upper bytes of two 16-bit places.
struct Int8Pairs {
  static constexpr float kUnits = kCodeUnits;
  __device__ __forceinline__ static uint32_t low(uint32_t x) {
    return int8_pair((x ^ 0x00800080u) & 0x00ff00ffu);
  }
  __device__ __forceinline__ static uint32_t high(uint32_t x) { return low(x >> 8); }
};
struct Fp8Pairs {
  static constexpr float kUnits = 1;
  __device__ __forceinline__ static uint32_t low(uint32_t x) { return fp8_pair(x << 4, x << 8); }
  __device__ __forceinline__ static uint32_t high(uint32_t x) { return fp8_pair(x >> 4, x); }
};

// Keys in any format but f32: codes lie row by row, as in their page.
template <int kHeadDim>
struct AnyKeys : DecodeThread {
  const KvFormat format;
  const uint32_t row_bytes;

  __device__ __forceinline__ explicit AnyKeys(const DecodeArgs& args)
      : format(args.key_format), row_bytes(args.key_row_bytes) {}

  // Of codes in bytes, rows four apart: their words fall into different banks, but for pairs.
  __device__ __forceinline__ int key_of(int tile, int half) const {
    return has_factors(format) ? 4 * g + 2 * tile + half : tile * 16 + half * 8 + g;
  }
  __device__ __forceinline__ void load_query(const uint16_t* row, int k, uint32_t (&pairs)[2]) const {
    if (is_float(format)) return HalfKeys<Bf16, kHeadDim>(DecodeArgs()).load_query(row, k, pairs);
    const uint2 four = reinterpret_cast<const uint2*>(row)[4 * k + t];
    pairs[0] = __byte_perm(four.x, four.y, 0x5410);
    pairs[1] = __byte_perm(four.x, four.y, 0x7632);
  }

  template <int kColumnTiles>
  __device__ __forceinline__ void score(ChunkScores<kColumnTiles>& scores, uint32_t chunk,
                                        const UnitQueries<kHeadDim, kColumnTiles>& queries) const {
    if (format == KvFormat::int8) return score_bytes<Int8Pairs, kColumnTiles>(scores, chunk, queries);
    if (format == KvFormat::fp8) return score_bytes<Fp8Pairs, kColumnTiles>(scores, chunk, queries);
    if (format == KvFormat::bf16)
      return HalfKeys<Bf16, kHeadDim>(DecodeArgs()).template score<kColumnTiles>(scores, chunk, queries);
    if (format == KvFormat::f16)
      return HalfKeys<F16, kHeadDim>(DecodeArgs()).template score<kColumnTiles>(scores, chunk, queries);
    score_nibbles<kColumnTiles>(scores, chunk, queries);
  }

  template <class Pairs, int kColumnTiles>
  __device__ __forceinline__ void score_bytes(ChunkScores<kColumnTiles>& scores, uint32_t chunk,
                                              const UnitQueries<kHeadDim, kColumnTiles>& queries) const {
    const uint32_t first = chunk + 4 * g * row_bytes;
#pragma unroll
    for (int k = 0; k < kHeadDim / 16; ++k) {
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        uint32_t a[4];
#pragma unroll
        for (int half = 0; half < 2; ++half) {
          const uint32_t word =
              shared_word_of_row(first + (2 * i + half) * row_bytes + 16 * k + 4 * t, half == 0);
          a[half] = Pairs::low(word);
          a[half + 2] = Pairs::high(word);
        }
#pragma unroll
        for (int n = 0; n < kColumnTiles; ++n) Bf16::mma(scores[n][i], a, queries[n][k][0], queries[n][k][1]);
      }
    }
#pragma unroll
    for (int row = 0; row < 4; ++row) {
      const float factor = shared_f16(first + row * row_bytes + kHeadDim) * Pairs::kUnits;
#pragma unroll
      for (int n = 0; n < kColumnTiles; ++n) {
        scores[n][row / 2][row % 2 * 2] *= factor;
        scores[n][row / 2][row % 2 * 2 + 1] *= factor;
      }
    }
  }

  // A word of a group has four dimensions of its first half and four of its second.
  template <int kColumnTiles>
  __device__ __forceinline__ void score_nibbles(ChunkScores<kColumnTiles>& scores, uint32_t chunk,
                                                const UnitQueries<kHeadDim, kColumnTiles>& queries) const {
#pragma unroll
    for (int group = 0; group < kHeadDim / 32; ++group) {
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        uint32_t lower[4], upper[4];
#pragma unroll
        for (int half = 0; half < 2; ++half) {
          const uint32_t row = chunk + (i * 16 + half * 8 + g) * row_bytes;
          const uint32_t word = shared_word(row + 16 * group + 4 * t);
          const uint32_t pair = shared_word(row + kHeadDim / 2 + 4 * group);
          const uint32_t scales = __byte_perm(pair, 0, 0x1010), leasts = __byte_perm(pair, 0, 0x3232);
          lower[half] = q4_pair(word, scales, leasts);
          lower[half + 2] = q4_pair(word >> 8, scales, leasts);
          upper[half] = q4_upper_pair(word, scales, leasts);
          upper[half + 2] = q4_upper_pair(word >> 8, scales, leasts);
        }
#pragma unroll
        for (int n = 0; n < kColumnTiles; ++n) {
          F16::mma(scores[n][i], lower, queries[n][2 * group][0], queries[n][2 * group][1]);
          F16::mma(scores[n][i], upper, queries[n][2 * group + 1][0], queries[n][2 * group + 1][1]);
        }
      }
    }
  }
};

// Values in any format but f32. A thread's dimensions are neighbours in a row, or of q4 the nibbles of kDimTiles bytes; those of
// the threads beside it, a quarter of a word apart for each warp, fall into different banks.
template <int kHeadDim>
struct AnyValues : DecodeThread {
  using Shape = DecodeShape<kHeadDim>;
  static constexpr int kDimTiles = Shape::kDimTiles;
  const KvFormat format;
  const uint32_t row_bytes;

  __device__ __forceinline__ explicit AnyValues(const DecodeArgs& args)
      : format(args.value_format), row_bytes(args.value_row_bytes) {}

  __device__ __forceinline__ int dim_of(int tile, int half) const {
    if (is_float(format)) return HalfValues<Bf16, kHeadDim>(DecodeArgs()).dim_of(tile, half);
    if (has_factors(format)) return 2 * kDimTiles * (4 * g + warp) + 2 * tile + half;
    const int byte = kDimTiles * (4 * g + warp) + tile;
    return byte / 16 * 32 + byte % 16 + 16 * half;
  }
  __device__ __forceinline__ bool needs_rows_for_shares() const { return has_factors(format); }
  // Of a key of the chunk.
  __device__ __forceinline__ float factor_of(uint32_t chunk, int key) const {
    if (!has_factors(format)) return 1.0f;
    const float units = format == KvFormat::int8 ? Int8Pairs::kUnits : Fp8Pairs::kUnits;
    return shared_f16(chunk + key * row_bytes + kHeadDim) * units;
  }
  __device__ __forceinline__ uint16_t rounded(float p, float factor) const {
    p *= factor;
    return uint16_t(numbers_of(format) == HalfKind::f16 ? F16::pack(p, 0.0f) : Bf16::pack(p, 0.0f));
  }

  __device__ __forceinline__ void load(uint32_t (&a)[kDimTiles][4], uint32_t chunk, int k) const {
    if (format == KvFormat::int8) return load_bytes<Int8Pairs>(a, chunk, k);
    if (format == KvFormat::fp8) return load_bytes<Fp8Pairs>(a, chunk, k);
    if (is_float(format)) return HalfValues<Bf16, kHeadDim>(DecodeArgs()).load(a, chunk, k);
    load_nibbles(a, chunk, k);
  }
  __device__ __forceinline__ void mma(float (&d)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) const {
    numbers_of(format) == HalfKind::f16 ? F16::mma(d, a, b0, b1) : Bf16::mma(d, a, b0, b1);
  }

  // Keys 16k + 2t and the next, then the same eight rows on.
  template <class Pairs>
  __device__ __forceinline__ void load_bytes(uint32_t (&a)[kDimTiles][4], uint32_t chunk, int k) const {
#pragma unroll
    for (int later = 0; later < 2; ++later) {
      const uint32_t row = chunk + (16 * k + 8 * later + 2 * t) * row_bytes + 2 * kDimTiles * (4 * g + warp);
      uint32_t first, second;
      if constexpr (kDimTiles == 2) {
        first = shared_word_of_row(row, true);
        second = shared_word_of_row(row + row_bytes, false);
      } else {
        first = shared_half(row);
        second = shared_half(row + row_bytes);
      }
      const uint32_t pairs[2] = {__byte_perm(first, second, 0x5410), __byte_perm(first, second, 0x7632)};
#pragma unroll
      for (int i = 0; i < kDimTiles; ++i) {
        a[i][2 * later] = Pairs::low(pairs[i]);
        a[i][2 * later + 1] = Pairs::high(pairs[i]);
      }
    }
  }

  __device__ __forceinline__ void load_nibbles(uint32_t (&a)[kDimTiles][4], uint32_t chunk, int k) const {
    const int byte = kDimTiles * (4 * g + warp);
#pragma unroll
    for (int later = 0; later < 2; ++later) {
      const uint32_t row = chunk + (16 * k + 8 * later + 2 * t) * row_bytes;
      uint32_t first, second;
      if constexpr (kDimTiles == 2) {
        first = shared_half(row + byte);
        second = shared_half(row + row_bytes + byte);
      } else {
        first = shared_byte(row + byte);
        second = shared_byte(row + row_bytes + byte);
      }
      const uint32_t codes = __byte_perm(first, second, 0x5410);
      const uint32_t group = row + kHeadDim / 2 + byte / 16 * 4;
      const uint32_t one = shared_word(group), two = shared_word(group + row_bytes);
      const uint32_t scales = __byte_perm(one, two, 0x5410), leasts = __byte_perm(one, two, 0x7632);
#pragma unroll
      for (int i = 0; i < kDimTiles; ++i) {
        a[i][2 * later] = q4_pair(codes >> 8 * i, scales, leasts);
        a[i][2 * later + 1] = q4_upper_pair(codes >> 8 * i, scales, leasts);
      }
    }
  }
};

template <int kHeadDim>
struct AnySides {
  using Keys = AnyKeys<kHeadDim>;
  using Values = AnyValues<kHeadDim>;
  static constexpr uint32_t kMergedAtOnce = 2;
};

}  // namespace quire::cuda
