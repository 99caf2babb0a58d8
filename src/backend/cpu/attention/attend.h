#pragma once

#include <cstddef>
#include <cstdint>

#include "kv/layout/kv_layout.h"

namespace quire {

// Rows that a kernel reads or writes in whole vectors have a multiple of so many floats, and so many queries are always
// there to be written.
inline constexpr size_t kAttendLanes = 16;

// Floats between rows that were unpacked: else a few columns of all of them would share a few sets of a cache.
inline constexpr size_t kRowGap = 16;

struct AttendQuery {
  const float* row;     // [query_dim]
  uint32_t begin, end;  // the positions it sees, its own last
  float slope = 0;      // what a score loses with every position that the key is behind
};

// Attention of the query heads of one KV head to some pages, one after the other, under a running maximum. Of a query
// nothing counts but its row and the rows it sees, and they count in this order, whatever stands beside it:
//
//   score    = (s0 + s1) + (s2 + s3), where s_j is the sum, in order, of scale * query[d] * key[d] for d = j, j + 4, ...;
//              where a key goes on in the row of its value, plus the same of that row and the rest of the query; then the soft
//              cap; then plus slope * (the key's position - the query's)
//   max      = the largest score so far; if a page raises it, sum and values are multiplied with e^(old - new)
//   sum     += the sum of e^(score - max) over the rows of a page
//   values  += e^(score - max) * value row, row by row
//
// Sums are of fused multiply-adds, in lanes that are queries or dimensions: so vectors of every width give the same bits.
//
// To keys in bf16, scale * query[d] is rounded to bf16 first; to values in bf16, e^(score - max) is, before it goes into the
// sum and to the values, so that shares still add up to one. Then products are those of instructions that multiply bf16.
// These add them in an order of their own: equal to the others but for rounding.
//
// A row of fp8 has a scale: the score is multiplied with it before the soft cap, and so is the share before the values. What it
// is multiplied with on the way, so that exponents fit, is a power of two, and changes no bit of numbers above 2^-60.
//
// Rows of int8 (a multiple of 16 values) and of q4 (of 32) stay codes, and sums over them are of integers: exact, whoever adds
// them in whatever order. With r(x) = the integer nearest to x * (steps / most), of int8, where steps = 16256 (14 bits: less is
// lost than by 16-bit keys and values):
//
//   score    = row's scale * sum of r(query) * code, times most / steps, where most is the largest of |scale * query[d]|
//   values  += most / steps * sum of r(weight) * code, where weight = row's scale * share, and most is the largest weight of
//              a page
//
// Of q4, steps = 127: what 8 bits lose is little beside what four have lost already. A group of 32 codes has a scale and a
// least, and in a page a most of its own:
//
//   score    = (p0 + p1) times most / steps, where p_j is the sum over the groups g = j, j + 2, ... of scale * sum of
//              r(query) * code, then of least * sum of r(query)
//   base     = (sum of least * share) + 7.5 * (sum of weight - most / steps * sum of r(weight))
//   values  += base, then most / steps * sum of r(weight) * code
//
// The second part of the base gives back, under the middle of the codes, what rounding took from the weights: many rows with
// small shares beside one with a large share, all rounded to 0, would pull every value towards the least otherwise.
//
// Where there are index_weights, queries are the heads of one token that chooses rows, and nothing is attended to:
//
//   index_scores[row] = (s0 + s1) + (s2 + s3), where s_j is the sum, in order, of index_weights[h] * max(score of head h, 0) for
//                       h = j, j + 4, ...
struct AttendArgs {
  const KvLayerShape* shape;
  uint32_t page_tokens;           // a multiple of 4
  const std::byte* const* pages;  // the key rows of the KV head; its value rows follow
  uint32_t begin_page, end_page;  // of the context; pages[0] is begin_page
  uint32_t fetch_end_page;        // pages before this are in `pages` too, and may be fetched: they come next
  const AttendQuery* queries;
  size_t count;
  float scale, soft_cap;  // no cap: 0
  bool slopes = false;    // whether any query has one

  // The result. Written for `count` queries, with room for a multiple of kAttendLanes.
  float* max;          // [queries]
  float* sum;          // [queries]
  float* values;       // [queries, value_width]
  size_t key_width;    // key_dim, rounded up to kAttendLanes; where a key goes on, plus value_width
  size_t value_width;  // value_dim, rounded up

  // Room to work in, aligned as floats are.
  float* query_lanes;            // [queries, key_width]
  float* key_rows;               // [page_tokens, key_dim rounded up + kRowGap]
  float* value_rows;             // [page_tokens, value_width + kRowGap]
  float* scores;                 // [page_tokens + 1, kAttendLanes]
  float* more_scores = nullptr;  // the same, where a key goes on, or for index_scores

  const float* index_weights = nullptr;  // [queries]
  float* index_scores = nullptr;         // [rows of the pages], in place of the other results
};

// e^x of an x that is not above zero: 2^n * p(r) with x = n ln 2 + r. Below about -87.7 it is 0.
struct ShareExp {
  static constexpr float kLeast = -88.02969f;  // n = -127, whose power is written as 0
  static constexpr float kLog2E = 1.44269504088896341f;
  static constexpr float kLn2 = 0.693147180559945309f;
  static constexpr float kRound = 0x1.8p23f + 127.0f;  // adding it leaves n + 127 at the bottom of the bits
  static constexpr float kP6 = 0.0013941213f, kP5 = 0.0083752098f, kP4 = 0.041666351f, kP3 = 0.16666414f;
  static constexpr float kP2 = 0.5f;  // and 1 and 1
};

// The twin of all kernels, which computes as it is written above.
void attend_scalar(const AttendArgs& args);

// Vectors that every machine of the architecture has. On x86-64 that is without fused multiply-adds: equal to the others
// but for rounding.
void attend_baseline(const AttendArgs& args);

// The same, but nothing is rounded to bf16: what goldens compare with.
void attend_exact(const AttendArgs& args);

}  // namespace quire
