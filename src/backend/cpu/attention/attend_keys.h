// Queries and the rows that they are scored with, for one instruction set. Included by files that are compiled for different ones, so
// nothing here may have a name that the linker sees, and nothing of the standard library that is more than a constant.
#pragma once

#include "backend/cpu/attention/attend_bf16.h"
#include "backend/cpu/attention/attend_floats.h"
#include "backend/cpu/attention/attend_nibbles.h"

namespace quire {
namespace {

// A row that is a key, or the part of one, and the numbers of a query that belong to it.
template <class Isa>
class KeyPart {
 public:
  // `few`: there are so few queries that rows are better read as they stand in the page.
  KeyPart(KvFormat format, size_t dim, uint32_t page_tokens, bool few)
      : format_(format),
        dim_(dim),
        width_((dim + kAttendLanes - 1) / kAttendLanes * kAttendLanes),
        row_bytes_(kv_row_bytes(format, dim)) {
    reads_ = dim % 4 == 0 && has_values(format) && (format == KvFormat::f32 || (Isa::kReadsKeys && few));
    rounds_ = Isa::kRoundsToBf16 && format == KvFormat::bf16;
    if constexpr (Bf16::kPresent) {
      multiplies_ = format == KvFormat::bf16 && Bf16::takes(dim, page_tokens);
      reads_ |= multiplies_;
    }
    sums_ = sums_codes(format, dim);
  }

  KvFormat format() const { return format_; }
  size_t dim() const { return dim_; }
  size_t width() const { return width_; }
  size_t row_bytes() const { return row_bytes_; }
  bool reads() const { return reads_; }            // value by value, straight from the page
  bool sums() const { return sums_; }              // codes, as integers
  bool multiplies() const { return multiplies_; }  // as bf16

  // N queries, as [dim, N] or [dim / 4, N, 4], scaled, into `out`; row_of(lane) is where this part of one begins.
  template <size_t N, class RowOf>
  void gather(const RowOf& row_of, float scale, float* out) const {
    if (sums_ && format_ == KvFormat::int8) {
      const QueryCodes<N> codes(out, dim_);
      return gather_codes<typename Isa::Codes>(codes, dim_, scale, row_of);
    }
    if (sums_) {
      for (size_t q = 0; q < N; q += 4)
        gather_nibbles<typename Isa::Nibbles>(nibble_queries(out, q), dim_, scale,
                                              [&](size_t lane) { return row_of(q + lane); });
      return;
    }
    if constexpr (Bf16::kPresent) {
      if (multiplies_) return gather_bf16<N>(row_of, scale, reinterpret_cast<uint16_t*>(out));
    }
    if (format_ == KvFormat::fp8) scale *= Isa::kFp8Factor;
    for (size_t lane = 0; lane < N; ++lane) {
      const float* row = row_of(lane);
      for (size_t d = 0; d < width_; d += 4) {
        const Floats<4> quad = scaled_quad(row, d, scale);
        if constexpr (kInQuads<Isa>) {
          store_lanes(quad, out + d * N + lane * 4);
          continue;
        }
        float four[4];
        store_lanes(quad, four);
        for (size_t i = 0; i < 4; ++i) out[(d + i) * N + lane] = four[i];
      }
    }
  }

  // Of the rows [begin, end), multiples of four, and maybe of some around them, as [rows, N]. `queries` as gathered, `scales` those
  // of the first row in fp8.
  template <size_t N>
  void score(const float* queries, const PageRows& rows, const std::byte* scales,
             const PageScores<N>& scores) const {
    if (multiplies_) {
      score_as_bf16(queries, rows, scores);
    } else if (sums_) {
      score_as_integers(queries, rows, scores);
    } else {
      score_floats<Isa, N>(queries, rows, dim_, scores);
    }
    if (format_ == KvFormat::fp8) scale_rows(scores, scales, row_bytes_, kFp8Back);
  }

 private:
  using Bf16 = typename Isa::Bf16;

  // Four numbers of a query, as they are multiplied with keys; 0 beyond its end.
  ALWAYS_INLINE Floats<4> scaled_quad(const float* row, size_t d, float scale) const {
    Floats<4> quad = {};
    if (d + 4 <= dim_) {
      quad = load_lanes<Floats<4>>(row + d);
    } else {
      for (size_t i = 0; d + i < dim_; ++i) quad[i] = row[d + i];
    }
    quad *= scale;
    return rounds_ ? round_to_bf16<4>(quad) : quad;
  }

  template <size_t N, class RowOf>
  void gather_bf16(const RowOf& row_of, float scale, uint16_t* out) const {
    for (size_t lane = 0; lane < N; ++lane) {
      const float* row = row_of(lane);
      for (size_t d = 0; d < dim_; d += 4) {
        float four[4];
        store_lanes(scaled_quad(row, d, scale), four);
        for (size_t i = 0; i < 4; ++i) out[Bf16::template place<N>(lane, d + i)] = upper_half(four[i]);
      }
    }
  }

  // Four queries of a tile, the first of them at `lane`.
  NibbleQueries nibble_queries(const float* queries, size_t lane) const {
    return {const_cast<float*>(queries) + lane * width_, dim_};
  }

  template <size_t N>
  void score_as_bf16(const float* queries, const PageRows& rows, const PageScores<N>& scores) const {
    if constexpr (Bf16::kPresent)
      Bf16::template score<N>(reinterpret_cast<const uint16_t*>(queries), rows, dim_, scores.begin,
                              scores.end, scores.all);
  }

  template <size_t N>
  void score_as_integers(const float* queries, const PageRows& keys, const PageScores<N>& scores) const {
    for (size_t row = scores.begin; row < scores.end; row += 4) {
      const std::byte* at = keys.bytes + row * keys.row_bytes;
      prefetch<typename Isa::Fetch>(keys, at, 4 * keys.row_bytes);
      if (keys.format == KvFormat::int8) {
        const QueryCodes<N> codes(const_cast<float*>(queries), dim_);
        score_codes<Isa>(codes, at, keys.row_bytes, dim_, scores.row(row));
        continue;
      }
      const NibbleRows rows{at, keys.row_bytes, dim_};
      for (size_t q = 0; q < N; q += 4)
        Isa::Nibbles::template score<Isa>(nibble_queries(queries, q), rows, scores.row(row) + q, N);
    }
  }

  KvFormat format_;
  size_t dim_, width_, row_bytes_;
  bool reads_, sums_, rounds_, multiplies_ = false;
};

}  // namespace
}  // namespace quire
