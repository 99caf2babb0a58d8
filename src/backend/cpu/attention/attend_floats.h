// Scores and values of pages whose rows are read value by value, for one instruction set. Included by files that are compiled
// for different ones, so nothing here may have a name that the linker sees, and nothing of the standard library that is code.
#pragma once

#include "backend/cpu/attention/attend_rows.h"
#include "backend/cpu/attention/attend_shares.h"

namespace quire {
namespace {

// `queries`: [key_dim, N] or [key_dim / 4, N, 4], scaled; 0 from key_dim to the next multiple of four.
template <class Isa, size_t N, KvFormat format>
void score_floats_as(const float* queries, const PageRows& keys, size_t key_dim,
                     const PageScores<N>& scores) {
  constexpr size_t kRows = Isa::kScoreRows;
  const size_t dims = (key_dim + 3) / 4 * 4, row_bytes = keys.row_bytes;
  if constexpr (kInQuads<Isa, N>) {
    constexpr size_t kMost = 32 / N;  // rows whose sums hide each other's latency
    for (size_t row = scores.begin; row < scores.end;) {
      const std::byte* at = keys.bytes + row * row_bytes;
      const size_t count = row + kMost <= scores.end ? kMost : 4;
      prefetch<typename Isa::Fetch>(keys, at, count * row_bytes);
      if (count == kMost) {
        score_quads<Isa, N, kMost>(queries, at, row_bytes, dims, scores.row(row));
      } else {
        score_quads<Isa, N, 4>(queries, at, row_bytes, dims, scores.row(row));
      }
      row += count;
    }
    return;
  }
  for (size_t row = scores.begin; row < scores.end; row += kRows) {
    const std::byte* at = keys.bytes + row * row_bytes;
    prefetch<typename Isa::Fetch>(keys, at, kRows * row_bytes);
    score_rows<Isa, N, format>(queries, at, row_bytes, dims, scores.row(row));
  }
}

template <class Isa, size_t N>
void score_floats(const float* queries, const PageRows& keys, size_t key_dim, const PageScores<N>& scores) {
  switch (keys.format) {
    case KvFormat::f32:
      score_floats_as<Isa, N, KvFormat::f32>(queries, keys, key_dim, scores);
      break;
    case KvFormat::f16:
      if constexpr (Isa::kReadsKeys) score_floats_as<Isa, N, KvFormat::f16>(queries, keys, key_dim, scores);
      break;
    case KvFormat::bf16:
      if constexpr (Isa::kReadsKeys) score_floats_as<Isa, N, KvFormat::bf16>(queries, keys, key_dim, scores);
      break;
    case KvFormat::fp8:
      if constexpr (Isa::kReadsKeys) score_floats_as<Isa, N, KvFormat::fp8>(queries, keys, key_dim, scores);
      break;
    default:  // codes were unpacked
      break;
  }
}

// The values of a page, which are added to what the queries of a tile have summed.
template <class Isa, size_t N>
class FloatValues {
 public:
  FloatValues(const PageRows& rows, const float* shares, const RunningSoftmax& softmax)
      : rows_(rows), shares_(shares), softmax_(softmax) {}

  void add(const Sight<N>& sight) const {
    for (size_t lane = 0; lane < softmax_.live;) {
      size_t count = 1;
      while (count < 4 && lane + count < softmax_.live && sight.begin[lane + count] == sight.begin[lane] &&
             sight.end[lane + count] == sight.end[lane])
        ++count;
      if (sight.begin[lane] < sight.end[lane]) {
        const Share share{lane, size_t(sight.begin[lane]), size_t(sight.end[lane])};
        if (count == 1) add_share<1>(share);
        if (count == 2) add_share<2>(share);
        if (count == 3) add_share<3>(share);
        if (count == 4) add_share<4>(share);
      }
      lane += count;
    }
  }

 private:
  // Some lanes that see the same rows.
  struct Share {
    size_t lane, begin, end;
  };

  template <size_t kQueries>
  void add_share(const Share& share) const {
    switch (rows_.format) {
      case KvFormat::f32:
        add_as<kQueries, KvFormat::f32>(share);
        break;
      case KvFormat::f16:
        add_as<kQueries, KvFormat::f16>(share);
        break;
      case KvFormat::bf16:
        add_as<kQueries, KvFormat::bf16>(share);
        break;
      case KvFormat::fp8:
        add_as<kQueries, KvFormat::fp8>(share);
        break;
      default:  // codes were unpacked
        break;
    }
  }

  template <size_t kQueries, KvFormat format>
  void add_as(const Share& share) const {
    constexpr size_t kWide = Isa::kValueVectors, kNarrow = kAttendLanes / Isa::kLanes;
    size_t d = 0;
    for (; d + kWide * Isa::kLanes <= softmax_.width; d += kWide * Isa::kLanes)
      add_columns<kQueries, format, kWide>(share, d);
    if constexpr (kNarrow < kWide) {
      for (; d < softmax_.width; d += kNarrow * Isa::kLanes) add_columns<kQueries, format, kNarrow>(share, d);
    }
  }

  template <size_t kQueries, KvFormat format, size_t kVectors>
  ALWAYS_INLINE void add_columns(const Share& share, size_t d) const {
    add_value_rows<Isa, N, kQueries, format, kVectors>(
        shares_ + share.begin * N + share.lane,
        rows_.bytes + share.begin * rows_.row_bytes + d * value_bytes(format), rows_.row_bytes,
        share.end - share.begin, rows_.ahead, softmax_.values + share.lane * softmax_.width + d,
        softmax_.width);
  }

  const PageRows& rows_;
  const float* shares_;  // [rows of the page, N]
  const RunningSoftmax& softmax_;
};

}  // namespace
}  // namespace quire
