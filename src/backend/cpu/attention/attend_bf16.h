// Attention to rows of bf16 as they are, for instruction sets that multiply such numbers. Included by files that are compiled
// for different ones, so nothing here may have a name that the linker sees, and nothing of the standard library that is code.
#pragma once

#include "backend/cpu/attention/attend_rows.h"

namespace quire {
namespace {

// The widest rows that they take.
inline constexpr size_t kMostBf16Dim = 512;

// What multiplies rows of bf16: nothing here, so they become floats. Else:
//
//   takes(dim, page_tokens)  whether it does so with rows of so many values
//   begin(count, page, bytes), end()
//                            around a call for so many queries, of which this is the first page
//   place<N>(lane, d)        where the number d of a query stands among those of N queries
//   score<N>(queries, keys, dim, begin, end, out)
//                            scores of the rows [begin, end), and maybe of some around them, as [page_tokens, N]
//   add_values<N>(shares, rows, dim, out, stride)
//                            adds the rows of a whole page under the shares of N queries, [page_tokens, N], which are
//                            numbers of bf16
//   put_in_order(sums, dim)  makes values of what was added for a query
struct NoBf16 {
  static constexpr bool kPresent = false;
  static constexpr size_t kPagesAhead = 0;  // that are fetched, besides what rows fetch for themselves
};

ALWAYS_INLINE uint16_t upper_half(float x) {
  return uint16_t(load_lanes<uint32_t>(&x) >> 16);
}

// Whether rows of bf16 hold numbers only. REQUIRES: `dim` is a multiple of 16.
inline bool all_finite(const PageRows& rows, size_t begin, size_t end, size_t dim) {
  Words<4> found = {};
  for (size_t r = begin; r < end; ++r) {
    for (size_t d = 0; d < dim; d += 8) {
      const auto two = load_lanes<Words<4>>(rows.bytes + r * rows.row_bytes + 2 * d);
      found |= Words<4>((two & 0x7f80u) == 0x7f80u) | Words<4>((two & 0x7f800000u) == 0x7f800000u);
    }
  }
  return !any(found);
}

// The rows [begin, end) of a page of `count`, and zeros around them: whatever stands there, times 0, is 0.
inline PageRows clear_others(const PageRows& rows, size_t begin, size_t end, size_t count, void* room) {
  auto* out = static_cast<std::byte*>(room);
  std::memset(out, 0, begin * rows.row_bytes);
  std::memcpy(out + begin * rows.row_bytes, rows.bytes + begin * rows.row_bytes,
              (end - begin) * rows.row_bytes);
  std::memset(out + end * rows.row_bytes, 0, (count - end) * rows.row_bytes);
  return {out, rows.row_bytes, rows.format, 0};
}

}  // namespace
}  // namespace quire
