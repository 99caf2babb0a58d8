// Scores and values of pages whose rows are read value by value, for one instruction set. Included by files that are compiled
// for different ones, so nothing here may have a name that the linker sees, and nothing of the standard library that is code.
#pragma once

#include "backend/cpu/attention/attend_quads.h"
#include "backend/cpu/attention/attend_shares.h"

namespace quire {
namespace {

// `queries`: [key_dim, N] or [key_dim / 4, N, 4], scaled; 0 from key_dim to the next multiple of four.
template <class Isa, size_t N, KvFormat format>
void score_floats_as(const float* queries, const PageRows& keys, size_t key_dim,
                     const PageScores<N>& scores) {
  constexpr size_t kRows = Isa::kScoreRows;
  const size_t dims = (key_dim + 3) / 4 * 4, row_bytes = keys.row_bytes;
  if constexpr (kInQuads<Isa>) return score_quads<Isa, N>(queries, keys, dims, scores);
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

  // Some columns for all lanes, then the next: so the rows' columns stay in the first cache.
  void add(const Sight<N>& sight) const {
    Share shares[N];
    size_t count = 0;
    for (size_t lane = 0; lane < softmax_.live;) {
      Share share{lane, 1, size_t(sight.begin[lane]), size_t(sight.end[lane])};
      while (share.queries < kQueries && lane + share.queries < softmax_.live &&
             sight.begin[lane + share.queries] == sight.begin[lane] &&
             sight.end[lane + share.queries] == sight.end[lane])
        ++share.queries;
      if (share.begin < share.end) shares[count++] = share;
      lane += share.queries;
    }
    constexpr size_t kWide = Isa::kValueVectors * Isa::kLanes;
    for (size_t d = 0; d < softmax_.width; d += kWide) {
      for (size_t i = 0; i < count; ++i) add_share(shares[i], d);
    }
  }

 private:
  static constexpr size_t kQueries = Isa::kValueQueries;

  // Some lanes that see the same rows.
  struct Share {
    size_t lane, queries, begin, end;
  };

  void add_share(const Share& share, size_t d) const {
    if (share.queries == 1) add_to<1>(share, d);
    if (share.queries == 2) add_to<2>(share, d);
    if (share.queries == 3) add_to<3>(share, d);
    if (share.queries == 4) add_to<4>(share, d);
    if constexpr (kQueries > 4) {
      if (share.queries == 5) add_to<5>(share, d);
      if (share.queries == 6) add_to<6>(share, d);
    }
  }

  template <size_t kCount>
  void add_to(const Share& share, size_t d) const {
    switch (rows_.format) {
      case KvFormat::f32:
        add_as<kCount, KvFormat::f32>(share, d);
        break;
      case KvFormat::f16:
        add_as<kCount, KvFormat::f16>(share, d);
        break;
      case KvFormat::bf16:
        add_as<kCount, KvFormat::bf16>(share, d);
        break;
      case KvFormat::fp8:
        add_as<kCount, KvFormat::fp8>(share, d);
        break;
      default:  // codes were unpacked
        break;
    }
  }

  template <size_t kCount, KvFormat format>
  void add_as(const Share& share, size_t d) const {
    constexpr size_t kWide = Isa::kValueVectors, kNarrow = kAttendLanes / Isa::kLanes;
    if (d + kWide * Isa::kLanes <= softmax_.width) return add_columns<kCount, format, kWide>(share, d);
    if constexpr (kNarrow < kWide) {
      for (; d < softmax_.width; d += kNarrow * Isa::kLanes) add_columns<kCount, format, kNarrow>(share, d);
    }
  }

  template <size_t kCount, KvFormat format, size_t kVectors>
  ALWAYS_INLINE void add_columns(const Share& share, size_t d) const {
    add_value_rows<Isa, N, kCount, format, kVectors>(
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
