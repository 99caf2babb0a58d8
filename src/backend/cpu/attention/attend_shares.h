// From the scores of a page to shares, for one instruction set. Included by files that are compiled for different ones, so
// nothing here may have a name that the linker sees, and nothing of the standard library that is code.
#pragma once

#include "backend/cpu/attention/attend_lanes.h"
#include "backend/cpu/attention/kv_codes.h"

namespace quire {
namespace {

// Queries side by side in the lanes of a vector. Lanes beyond `live` repeat the last query.
template <size_t N>
struct QueryTile {
  size_t first, live;
};

// What the lanes of a tile see of a page: each the rows [begin, end), together [least, most).
template <size_t N>
struct Sight {
  int32_t begin[N], end[N];
  int32_t least, most;
  bool same;  // all of them the same rows
};

// What the lanes of a tile see of the page whose first position is `begin`.
template <size_t N>
Sight<N> see_page(const AttendQuery* queries, const QueryTile<N>& tile, uint32_t begin,
                  uint32_t page_tokens) {
  Sight<N> sight;
  for (size_t lane = 0; lane < N; ++lane) {
    const AttendQuery& query = queries[tile.first + (lane < tile.live ? lane : tile.live - 1)];
    const uint32_t first = query.begin > begin ? query.begin : begin;
    const uint32_t end = query.end < begin + page_tokens ? query.end : begin + page_tokens;
    sight.begin[lane] = first < end ? int32_t(first - begin) : int32_t(page_tokens);
    sight.end[lane] = first < end ? int32_t(end - begin) : 0;
  }
  sight.least = sight.begin[0];
  sight.most = sight.end[0];
  sight.same = true;
  for (size_t lane = 1; lane < N; ++lane) {
    sight.same &= sight.begin[lane] == sight.begin[0] && sight.end[lane] == sight.end[0];
    if (sight.begin[lane] < sight.least) sight.least = sight.begin[lane];
    if (sight.end[lane] > sight.most) sight.most = sight.end[lane];
  }
  return sight;
}

// Of the rows [begin, end) of a page, multiples of four.
template <size_t N>
struct PageScores {
  float* all;  // [rows of the page, N]
  size_t begin, end;

  ALWAYS_INLINE float* row(size_t r) const { return all + r * N; }
};

// The softmax so far of the queries of a tile.
struct RunningSoftmax {
  float *max, *sum;  // [lanes]
  float* values;     // [live, width]
  size_t width, live;
};

// Whether a vector has room for several rows of scores.
template <class Isa, size_t N>
constexpr bool kHasSeveralRows = Isa::kLanes >= 16 && N < 16;

// Scores or shares, times the scale of each row and a factor.
template <size_t N>
void scale_rows(const PageScores<N>& scores, const std::byte* scales, size_t row_bytes, float factor) {
  for (size_t r = scores.begin; r < scores.end; ++r)
    store_lanes(load_lanes<Floats<N>>(scores.row(r)) * (read_half(scales + r * row_bytes) * factor),
                scores.row(r));
}

// What the `live` heads of a tile make of each row, times their weights, goes to the four sums of the row: [rows, 4].
template <class Isa, size_t N>
void add_to_index(const PageScores<N>& scores, size_t rows, const float* weights, size_t live, float* sums) {
  for (size_t q = 0; q < live; q += 4) {
    float four[4] = {};  // of heads that are not there the weight is 0, and so is the score
    const size_t count = live - q < 4 ? live - q : 4;
    for (size_t i = 0; i < count; ++i) four[i] = weights[q + i];
    const Floats<4> weight = load_lanes<Floats<4>>(four);
    for (size_t r = 0; r < rows; ++r) {
      Floats<4> score = load_lanes<Floats<4>>(scores.row(r) + q);
      score = score < 0.0f ? Floats<4>{} : score;
      for (size_t i = count; i < 4; ++i) score[i] = 0.0f;
      store_lanes(Isa::multiply_add(weight, score, load_lanes<Floats<4>>(sums + 4 * r)), sums + 4 * r);
    }
  }
}

// cap * tanh(score / cap)
template <class Isa, size_t N>
void cap_scores(const PageScores<N>& scores, float soft_cap) {
  for (size_t r = scores.begin; r < scores.end; ++r) {
    const Floats<N> score = load_lanes<Floats<N>>(scores.row(r));
    const Floats<N> size = score < 0.0f ? -score : score;
    const Floats<N> e = exp_share<Isa, N>(size * (-2.0f / soft_cap));
    const Floats<N> capped = (1.0f - e) / (1.0f + e) * soft_cap;
    store_lanes(score < 0.0f ? -capped : capped, scores.row(r));
  }
}

// Keys that are further behind count for less. `behind`: by how many positions the first row of the page is, of each lane.
template <class Isa, size_t N>
void lean_scores(const PageScores<N>& scores, Floats<N> slopes, Ints<N> behind) {
  for (size_t r = scores.begin; r < scores.end; ++r) {
    const Floats<N> distance = __builtin_convertvector(behind - int32_t(r), Floats<N>);
    store_lanes(Isa::multiply_add(-slopes, distance, load_lanes<Floats<N>>(scores.row(r))), scores.row(r));
  }
}

template <size_t N>
void hide_rows(const PageScores<N>& scores, const Sight<N>& sight) {
  const Ints<N> first = load_lanes<Ints<N>>(sight.begin), last = load_lanes<Ints<N>>(sight.end);
  for (size_t r = scores.begin; r < scores.end; ++r) {
    const Ints<N> at = Ints<N>{} + int32_t(r);
    const Floats<N> score = load_lanes<Floats<N>>(scores.row(r));
    store_lanes(((at >= first) & (at < last)) ? score : all<N>(kNoScore), scores.row(r));
  }
}

template <class Isa, size_t N>
ALWAYS_INLINE Floats<N> larger_of_four(const float* scores, Floats<N> max) {
  const auto row = [&](size_t i) { return load_lanes<Floats<N>>(scores + i * N); };
  return Isa::larger(Isa::larger(Isa::larger(row(0), row(1)), Isa::larger(row(2), row(3))), max);
}

// The largest scores, several rows in a vector.
template <class Isa, size_t N>
ALWAYS_INLINE Floats<N> largest_wide(const PageScores<N>& scores) {
  Floats<16> wide = all<16>(kNoScore);
  for (const float* at = scores.row(scores.begin); at < scores.row(scores.end); at += 16)
    wide = Isa::larger(load_lanes<Floats<16>>(at), wide);
  float parts[16];
  store_lanes(wide, parts);
  Floats<N> largest = load_lanes<Floats<N>>(parts);
  for (size_t i = N; i < 16; i += N) largest = Isa::larger(load_lanes<Floats<N>>(parts + i), largest);
  return largest;
}

template <size_t N, size_t kCount>
ALWAYS_INLINE void round_all(Floats<N> (&shares)[kCount]) {
  for (auto& share : shares) share = round_to_bf16<N>(share);
}

// Scores become e^(score - less), several rows in a vector.
template <class Isa, size_t N>
ALWAYS_INLINE void exp_wide(PageScores<N> scores, Floats<N> less, bool rounded) {
  float repeated[16];
  for (size_t i = 0; i < 16; i += N) store_lanes(less, repeated + i);
  const Floats<16> all_less = load_lanes<Floats<16>>(repeated);
  constexpr size_t kVectors = N / 4;  // of four rows
  for (float* at = scores.row(scores.begin); at < scores.row(scores.end); at += 4 * N) {
    Floats<16> shares[kVectors];
    for (size_t i = 0; i < kVectors; ++i) shares[i] = load_lanes<Floats<16>>(at + 16 * i) - all_less;
    exp_shares<Isa, 16>(shares);
    if (rounded) round_all<16>(shares);
    for (size_t i = 0; i < kVectors; ++i) store_lanes(shares[i], at + 16 * i);
  }
}

// What was summed under an old maximum, under a new one.
template <class Isa, size_t N>
ALWAYS_INLINE void rescale(const RunningSoftmax& softmax, Floats<N> factor) {
  float factors[N];
  store_lanes(factor, factors);
  for (size_t lane = 0; lane < softmax.live; ++lane) {
    float* row = softmax.values + lane * softmax.width;
    for (size_t d = 0; d < softmax.width; d += Isa::kLanes)
      store_lanes(load_lanes<Floats<Isa::kLanes>>(row + d) * factors[lane], row + d);
  }
}

// Scores become shares under the running maximum, `rounded` to bf16 or not. A hidden row's is 0. By itself, so that the constants
// have registers.
template <class Isa, size_t N>
__attribute__((noinline)) void take_shares(PageScores<N> scores, RunningSoftmax softmax, bool rounded) {
  const Floats<N> old = load_lanes<Floats<N>>(softmax.max);
  Floats<N> max = old;
  if constexpr (kHasSeveralRows<Isa, N>) {
    max = Isa::larger(largest_wide<Isa>(scores), max);
  } else {
    for (size_t r = scores.begin; r < scores.end; r += 4) max = larger_of_four<Isa, N>(scores.row(r), max);
  }
  // A lane that has seen nothing yet subtracts 0: infinity minus infinity is no number.
  const Floats<N> less = max == kNoScore ? all<N>(0.0f) : max;
  Floats<N> sum = load_lanes<Floats<N>>(softmax.sum);
  if (any(max > old)) {
    const Floats<N> factor = exp_share<Isa, N>(old - less);
    sum *= factor;
    store_lanes(max, softmax.max);
    rescale<Isa, N>(softmax, factor);
  }
  Floats<N> page_sum = {};
  if constexpr (kHasSeveralRows<Isa, N>) {
    exp_wide<Isa, N>(scores, less, rounded);
    for (size_t r = scores.begin; r < scores.end; ++r) page_sum += load_lanes<Floats<N>>(scores.row(r));
    store_lanes(sum + page_sum, softmax.sum);
    return;
  }
  constexpr size_t kRows = Isa::kScoreRows;
  for (size_t row = scores.begin; row < scores.end; row += kRows) {
    Floats<N> shares[kRows];
    for (size_t r = 0; r < kRows; ++r) shares[r] = load_lanes<Floats<N>>(scores.row(row + r)) - less;
    exp_shares<Isa, N>(shares);
    if (rounded) round_all<N>(shares);
    for (size_t r = 0; r < kRows; ++r) {
      store_lanes(shares[r], scores.row(row + r));
      page_sum += shares[r];
    }
  }
  store_lanes(sum + page_sum, softmax.sum);
}

}  // namespace
}  // namespace quire
