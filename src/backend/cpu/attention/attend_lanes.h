// The inner loops of attention over pages, for one instruction set. Included by files that are compiled for different
// ones, so nothing here may have a name that the linker sees, and nothing of the standard library that is code.
#pragma once

#include <cstring>

#include "backend/cpu/attention/attend.h"
#include "backend/cpu/matmul/stream_fetch.h"

#ifndef ALWAYS_INLINE
#define ALWAYS_INLINE inline __attribute__((always_inline))
#endif

namespace quire {
namespace {

template <class Number, size_t N>
struct LanesOf {
  typedef Number Type __attribute__((vector_size(N * sizeof(Number))));
};
template <size_t N>
using Floats = typename LanesOf<float, N>::Type;
template <size_t N>
using Ints = typename LanesOf<int32_t, N>::Type;
template <size_t N>
using Words = typename LanesOf<uint32_t, N>::Type;

template <class Lanes>
ALWAYS_INLINE Lanes load_lanes(const void* from) {
  Lanes lanes;
  std::memcpy(&lanes, from, sizeof(lanes));
  return lanes;
}

template <class Lanes>
ALWAYS_INLINE void store_lanes(Lanes lanes, void* to) {
  std::memcpy(to, &lanes, sizeof(lanes));
}

template <size_t N>
ALWAYS_INLINE Floats<N> all(float value) {
  return Floats<N>{} + value;
}

// To bf16, to nearest, ties to even. REQUIRES: a NaN has not all bits set; no operation makes such a one.
template <size_t N>
ALWAYS_INLINE Floats<N> round_to_bf16(Floats<N> x) {
  const Words<N> bits = load_lanes<Words<N>>(&x);
  const Words<N> rounded = (bits + 0x7fffu + ((bits & 0x10000u) >> 16)) & 0xffff0000u;
  return load_lanes<Floats<N>>(&rounded);
}

// Of a format that is read value by value.
constexpr size_t value_bytes(KvFormat format) {
  return format == KvFormat::f32 ? 4 : format == KvFormat::fp8 ? 1 : 2;
}

// Rows of fp8 are read without their scales and with exponents that are wrong: to put them right would cost more than to
// move the codes into place. What they are multiplied with is moved too, so that sums are 2^-60 of what they should be, on
// every instruction set: far from the least and from the largest float.
constexpr float kFp8Back = 0x1p60f;

constexpr float kNoScore = -__builtin_inff();

// Of `Isa`:
//
//   Bf16                       what multiplies rows of bf16 (attend_bf16.h)
//   kRoundsToBf16              whether queries and shares are rounded for rows of bf16
//   kLanes                     the widest vector of floats
//   kScoreRows                 key rows scored side by side, each with four sums
//   kValueVectors              vectors of a value row summed side by side, for
//   kValueQueries              queries, six at most; where rows are converted one step ahead, four
//   kReadsKeys                 whether a Quad can be read from pages in any format, or only from floats; if so, rows are
//                              converted one step ahead of their use, which keeps the units busy
//   load<format>(bytes)        kLanes values of a row
//   quad<format>(bytes)        four values of a row, each to be multiplied with a vector:
//   add_product<i>(sum, a, b)  sum + a * b[i], rounded once, with a vector of any width in use and a Quad b
//   multiply_add(a, b, c)      a * b + c, rounded once
//   larger(a, b)               by lane
//   kFp8Factor                 what fp8 as loaded must be multiplied with to be 2^-60 of itself
//   load_fp8(bytes)            if kReadsKeys: eight values of fp8, of which
//   lower_quad, upper_quad     are four each
//   kQuadLanes                 floats of a vector in which queries are scored with the four sums of each side by side
//                              (attend_quads.h); 0: they are not. If so, of such vectors:
//   repeat_quad(floats)        four floats, repeated
//   join_quads(rows)           of four rows, each with four sums of some queries, the scores as [rows, queries]
template <class Lanes>
ALWAYS_INLINE bool any(Lanes mask) {
  int32_t bits = 0;
  for (size_t i = 0; i < sizeof(mask) / sizeof(bits); ++i) bits |= mask[i];
  return bits != 0;
}

// x = e^x of some vectors, step by step side by side: one alone would wait for itself.
template <class Isa, size_t N, size_t kCount>
ALWAYS_INLINE void exp_shares(Floats<N> (&x)[kCount]) {
  using E = ShareExp;
  Floats<N> shifted[kCount], square[kCount], low[kCount], p[kCount];
  for (auto& v : x) v = Isa::larger(all<N>(E::kLeast), v);
  for (size_t i = 0; i < kCount; ++i)
    shifted[i] = Isa::multiply_add(x[i], all<N>(E::kLog2E), all<N>(E::kRound));
  for (size_t i = 0; i < kCount; ++i)  // from here on the rest, r
    x[i] = Isa::multiply_add(shifted[i] - E::kRound, all<N>(-E::kLn2), x[i]);
  for (size_t i = 0; i < kCount; ++i) p[i] = Isa::multiply_add(x[i], all<N>(E::kP5), all<N>(E::kP4));
  for (size_t i = 0; i < kCount; ++i) square[i] = x[i] * x[i];
  for (size_t i = 0; i < kCount; ++i) low[i] = Isa::multiply_add(x[i], all<N>(E::kP3), all<N>(E::kP2));
  for (size_t i = 0; i < kCount; ++i) p[i] = Isa::multiply_add(square[i], all<N>(E::kP6), p[i]);
  for (size_t i = 0; i < kCount; ++i) x[i] = x[i] + 1.0f;
  for (size_t i = 0; i < kCount; ++i) p[i] = Isa::multiply_add(square[i], p[i], low[i]);
  for (size_t i = 0; i < kCount; ++i) p[i] = Isa::multiply_add(square[i], p[i], x[i]);
  for (size_t i = 0; i < kCount; ++i) {
    const Ints<N> power = load_lanes<Ints<N>>(&shifted[i]) << 23;
    x[i] = p[i] * load_lanes<Floats<N>>(&power);
  }
}

template <class Isa, size_t N>
ALWAYS_INLINE Floats<N> exp_share(Floats<N> x) {
  Floats<N> one[1] = {x};
  exp_shares<Isa, N>(one);
  return one[0];
}

// One step of the scores: four dimensions of a row with as many vectors of queries.
template <class Isa, class Lanes>
ALWAYS_INLINE void add_quad(Lanes (&sums)[4], const Lanes (&queries)[4], typename Isa::Quad key) {
  sums[0] = Isa::template add_product<0>(sums[0], queries[0], key);
  sums[1] = Isa::template add_product<1>(sums[1], queries[1], key);
  sums[2] = Isa::template add_product<2>(sums[2], queries[2], key);
  sums[3] = Isa::template add_product<3>(sums[3], queries[3], key);
}

template <class Lanes>
ALWAYS_INLINE void load_queries(Lanes (&out)[4], const float* queries) {
  for (size_t i = 0; i < 4; ++i) out[i] = load_lanes<Lanes>(queries + i * (sizeof(Lanes) / sizeof(float)));
}

// Scores of kScoreRows rows with N queries, [dims, N], into `out`, [rows, N].
template <class Isa, size_t N, KvFormat format>
ALWAYS_INLINE void score_rows(const float* queries, const std::byte* keys, size_t row_bytes, size_t dims,
                              float* out) {
  constexpr size_t kRows = Isa::kScoreRows, kQuadBytes = 4 * value_bytes(format);
  Floats<N> sums[kRows][4] = {}, query[4];
  if constexpr (Isa::kReadsKeys && format == KvFormat::fp8) {
    typename Isa::Fp8 eight[kRows];  // one step ahead, as below
    for (size_t r = 0; r < kRows; ++r) eight[r] = Isa::load_fp8(keys + r * row_bytes);
    for (size_t left = dims / 8; left > 0; --left, keys += 8, queries += 8 * N) {
      load_queries(query, queries);
      for (size_t r = 0; r < kRows; ++r) add_quad<Isa>(sums[r], query, Isa::lower_quad(eight[r]));
      load_queries(query, queries + 4 * N);
      for (size_t r = 0; r < kRows; ++r) {
        const typename Isa::Quad upper = Isa::upper_quad(eight[r]);
        eight[r] = Isa::load_fp8(keys + r * row_bytes + 8);
        add_quad<Isa>(sums[r], query, upper);
      }
    }
    if (dims % 8 != 0) {
      load_queries(query, queries);
      for (size_t r = 0; r < kRows; ++r) add_quad<Isa>(sums[r], query, Isa::lower_quad(eight[r]));
    }
  } else if constexpr (Isa::kReadsKeys && format != KvFormat::f32) {
    // What is read beyond the end of a row is still in the page.
    typename Isa::Quad even[kRows], odd[kRows];
    for (size_t r = 0; r < kRows; ++r) even[r] = Isa::template quad<format>(keys + r * row_bytes);
    for (size_t left = dims / 8; left > 0; --left, keys += 2 * kQuadBytes, queries += 8 * N) {
      load_queries(query, queries);
      for (size_t r = 0; r < kRows; ++r) {
        odd[r] = Isa::template quad<format>(keys + r * row_bytes + kQuadBytes);
        add_quad<Isa>(sums[r], query, even[r]);
      }
      load_queries(query, queries + 4 * N);
      for (size_t r = 0; r < kRows; ++r) {
        even[r] = Isa::template quad<format>(keys + r * row_bytes + 2 * kQuadBytes);
        add_quad<Isa>(sums[r], query, odd[r]);
      }
    }
    if (dims % 8 != 0) {
      load_queries(query, queries);
      for (size_t r = 0; r < kRows; ++r) add_quad<Isa>(sums[r], query, even[r]);
    }
  } else {
    for (size_t left = dims / 4; left > 0; --left, keys += kQuadBytes, queries += 4 * N) {
      load_queries(query, queries);
      for (size_t r = 0; r < kRows; ++r)
        add_quad<Isa>(sums[r], query, Isa::template quad<format>(keys + r * row_bytes));
    }
  }
  for (size_t r = 0; r < kRows; ++r)
    store_lanes((sums[r][0] + sums[r][1]) + (sums[r][2] + sums[r][3]), out + r * N);
}

template <class Isa, size_t kQueries, size_t kVectors>
struct ValueSums {
  using Lanes = Floats<Isa::kLanes>;
  Lanes sums[kQueries][kVectors];

  ALWAYS_INLINE void add(const Lanes& value, size_t i, typename Isa::Quad shares) {
    sums[0][i] = Isa::template add_product<0>(sums[0][i], value, shares);
    if constexpr (kQueries > 1) sums[1][i] = Isa::template add_product<1>(sums[1][i], value, shares);
    if constexpr (kQueries > 2) sums[2][i] = Isa::template add_product<2>(sums[2][i], value, shares);
    if constexpr (kQueries > 3) sums[3][i] = Isa::template add_product<3>(sums[3][i], value, shares);
    if constexpr (kQueries > 4) sums[4][i] = Isa::template add_product<4>(sums[4][i], value, shares);
    if constexpr (kQueries > 5) sums[5][i] = Isa::template add_product<5>(sums[5][i], value, shares);
  }
};

template <class Isa, KvFormat format, size_t kVectors>
ALWAYS_INLINE void load_vectors(const std::byte* bytes, Floats<Isa::kLanes> (&out)[kVectors]) {
  if constexpr (Isa::kReadsKeys && format == KvFormat::fp8) {
    for (size_t i = 0; i < kVectors; i += 2) {
      const typename Isa::Fp8 eight = Isa::load_fp8(bytes + 4 * i);
      out[i] = Floats<Isa::kLanes>(Isa::lower_quad(eight));
      out[i + 1] = Floats<Isa::kLanes>(Isa::upper_quad(eight));
    }
  } else {
    for (size_t i = 0; i < kVectors; ++i)
      out[i] = Isa::template load<format>(bytes + i * Isa::kLanes * value_bytes(format));
  }
}

// Adds kVectors vectors of `count` value rows under the shares of kQueries queries, [count, N], to `out`. `ahead` bytes on
// is what will be read next.
template <class Isa, size_t N, size_t kQueries, KvFormat format, size_t kVectors>
ALWAYS_INLINE void add_value_rows(const float* shares, const std::byte* rows, size_t row_bytes, size_t count,
                                  ptrdiff_t ahead, float* out, size_t out_stride) {
  using Lanes = Floats<Isa::kLanes>;
  constexpr size_t kVectorBytes = Isa::kLanes * value_bytes(format);
  const auto quad = [](const float* at) {
    return Isa::template quad<KvFormat::f32>(reinterpret_cast<const std::byte*>(at));
  };
  ValueSums<Isa, kQueries, kVectors> all;
  for (size_t q = 0; q < kQueries; ++q) {
    for (size_t i = 0; i < kVectors; ++i)
      all.sums[q][i] = load_lanes<Lanes>(out + q * out_stride + i * Isa::kLanes);
  }
  if constexpr (Isa::kReadsKeys && format != KvFormat::f32) {
    const std::byte* last = rows + (count - 1) * row_bytes;
    Lanes even[kVectors], odd[kVectors];
    load_vectors<Isa, format>(rows, even);
    for (size_t left = count / 2; left > 0; --left, shares += 2 * N) {
      fetch_line<typename Isa::Fetch>(rows + ahead);
      rows += row_bytes;
      fetch_line<typename Isa::Fetch>(rows + ahead);
      const auto first = quad(shares), second = quad(shares + N);
      if constexpr (format == KvFormat::fp8) load_vectors<Isa, format>(rows, odd);
      for (size_t i = 0; i < kVectors; ++i) {
        if constexpr (format != KvFormat::fp8) odd[i] = Isa::template load<format>(rows + i * kVectorBytes);
        all.add(even[i], i, first);
      }
      rows = rows == last ? last : rows + row_bytes;
      if constexpr (format == KvFormat::fp8) load_vectors<Isa, format>(rows, even);
      for (size_t i = 0; i < kVectors; ++i) {
        if constexpr (format != KvFormat::fp8) even[i] = Isa::template load<format>(rows + i * kVectorBytes);
        all.add(odd[i], i, second);
      }
    }
    if (count % 2 != 0) {
      for (size_t i = 0; i < kVectors; ++i) all.add(even[i], i, quad(shares));
    }
  } else {
    for (size_t left = count; left > 0; --left, rows += row_bytes, shares += N) {
      if constexpr (format != KvFormat::f32) {
        for (size_t i = 0; i < kVectors * kVectorBytes; i += 64)
          fetch_line<typename Isa::Fetch>(rows + ahead + i);
      }
      for (size_t i = 0; i < kVectors; ++i)
        all.add(Isa::template load<format>(rows + i * kVectorBytes), i, quad(shares));
    }
  }
  for (size_t q = 0; q < kQueries; ++q) {
    for (size_t i = 0; i < kVectors; ++i) store_lanes(all.sums[q][i], out + q * out_stride + i * Isa::kLanes);
  }
}

}  // namespace
}  // namespace quire
