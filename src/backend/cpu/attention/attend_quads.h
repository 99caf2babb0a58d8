// Scores by sums side by side, for one instruction set. Included by files that are compiled for different ones, so nothing here
// may have a name that the linker sees, and nothing of the standard library that is code.
//
// A vector has the four sums of some queries, and four numbers of a key are repeated in another: one load for as many multiply-adds
// as there are vectors of queries, where a single number that is broadcast would be good for one.
#pragma once

#include "backend/cpu/attention/attend_rows.h"
#include "backend/cpu/attention/attend_shares.h"

namespace quire {
namespace {

template <class Isa>
constexpr bool kInQuads = Isa::kQuadLanes > 0;

template <class Isa, size_t N>
class QuadScores {
 public:
  // `queries`: [dims / 4, N, 4]; `keys` are floats.
  QuadScores(const float* queries, const PageRows& keys, size_t dims)
      : queries_(queries), keys_(keys), dims_(dims) {}

  // Of the rows [begin, end), multiples of four.
  void score(const PageScores<N>& scores) const {
    for (size_t row = scores.begin; row < scores.end; row += kSpanRows) {
      const size_t left = scores.end - row, count = left < kSpanRows ? left : kSpanRows;
      prefetch<typename Isa::Fetch>(keys_, keys_.bytes + row * keys_.row_bytes, count * keys_.row_bytes);
      Lanes sums[kSpanRows][kVectors];
      for (size_t d = 0; d < dims_; d += kNearDims) {
        for (size_t r = 0; r < count; r += kRows) add(row + r, d, &sums[r]);
      }
      for (size_t r = 0; r < count; r += 4) join(&sums[r], scores.row(row + r));
    }
  }

 private:
  using Lanes = Floats<Isa::kQuadLanes>;
  static constexpr size_t kQueries = Isa::kQuadLanes / 4, kVectors = N / kQueries;  // of a vector; of them
  static constexpr size_t kMostSums = Isa::kQuadLanes;  // that have registers: there are twice as many
  static constexpr size_t kRows = kMostSums / kVectors < 4 ? kMostSums / kVectors : 4;
  // So many rows are multiplied with so much of the queries, which stays in the first cache meanwhile.
  static constexpr size_t kSpanRows = 32, kNearDims = 256;

  // The dimensions from `d` on to the sums of kRows rows.
  ALWAYS_INLINE void add(size_t row, size_t d, Lanes (*sums)[kVectors]) const {
    const float* queries = queries_ + d * N;
    const std::byte* keys = keys_.bytes + row * keys_.row_bytes + d * sizeof(float);
    const size_t left = dims_ - d;
    Lanes all[kRows][kVectors] = {};
    if (d > 0) {
      for (size_t r = 0; r < kRows; ++r) {
        for (size_t i = 0; i < kVectors; ++i) all[r][i] = sums[r][i];
      }
    }
    for (size_t quads = (left < kNearDims ? left : kNearDims) / 4; quads > 0; --quads) {
      Lanes query[kVectors];
      for (size_t i = 0; i < kVectors; ++i) query[i] = load_lanes<Lanes>(queries + Isa::kQuadLanes * i);
      for (size_t r = 0; r < kRows; ++r) {
        const Lanes key = Isa::repeat_quad(reinterpret_cast<const float*>(keys + r * keys_.row_bytes));
        for (size_t i = 0; i < kVectors; ++i) all[r][i] = Isa::multiply_add(query[i], key, all[r][i]);
      }
      keys += 4 * sizeof(float);
      queries += 4 * N;
    }
    for (size_t r = 0; r < kRows; ++r) {
      for (size_t i = 0; i < kVectors; ++i) sums[r][i] = all[r][i];
    }
  }

  // Four rows' sums are one number for each query.
  ALWAYS_INLINE static void join(const Lanes (*sums)[kVectors], float* out) {
    for (size_t i = 0; i < kVectors; ++i) {
      const Lanes four[4] = {sums[0][i], sums[1][i], sums[2][i], sums[3][i]};
      float scores[4][kQueries];
      store_lanes(Isa::join_quads(four), scores);
      for (size_t r = 0; r < 4; ++r) std::memcpy(out + r * N + kQueries * i, scores[r], sizeof(scores[r]));
    }
  }

  const float* queries_;
  const PageRows& keys_;
  size_t dims_;
};

template <class Isa, size_t N>
void score_quads(const float* queries, const PageRows& keys, size_t dims, const PageScores<N>& scores) {
  QuadScores<Isa, N>(queries, keys, dims).score(scores);
}

}  // namespace
}  // namespace quire
