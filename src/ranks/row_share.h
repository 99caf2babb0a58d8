#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>

namespace quire {

// Which of several processes that compute one model together.
struct RankPlace {
  uint32_t rank = 0;
  uint32_t of = 1;

  bool is_alone() const { return of == 1; }
  bool operator==(const RankPlace&) const = default;
};

// Rows of a matrix, heads of a layer: what one rank has of them.
struct RowShare {
  size_t begin = 0;
  size_t count = 0;

  size_t end() const { return begin + count; }
  bool operator==(const RowShare&) const = default;
};

// Ranks have parts that follow each other, as equal as whole units allow; the last unit may be a shorter one. REQUIRES: as many units
// as ranks, or some have nothing.
inline RowShare share_of(size_t total, size_t unit, RankPlace place) {
  const size_t units = (total + unit - 1) / unit;
  const auto edge = [&](size_t rank) { return std::min(total, units * rank / place.of * unit); };
  const size_t begin = edge(place.rank);
  return {begin, edge(size_t(place.rank) + 1) - begin};
}

// Rows of a product are divided by sixteen, as kernels take them, where there are so many.
inline constexpr size_t kRowUnit = 16;
inline size_t row_unit(size_t rows, uint32_t ranks) {
  return rows >= kRowUnit * ranks ? kRowUnit : 1;
}
inline RowShare rows_of(size_t rows, RankPlace place) {
  return share_of(rows, row_unit(rows, place.of), place);
}

}  // namespace quire
