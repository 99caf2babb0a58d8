#include "ranks/column_gather.h"

#include <algorithm>
#include <cstring>

namespace quire {
namespace {

constexpr size_t kMostBytes = size_t(16) << 20;  // at a time

}  // namespace

void ColumnGather::gather(const Rows& rows, size_t unit, Ranks::To to) {
  const uint32_t ranks = ranks_.count(), own = ranks_.rank();
  shares_.clear();
  for (uint32_t r = 0; r < ranks; ++r) shares_.push_back(share_of(rows.width, unit, {r, ranks}));
  const size_t at_once = std::max<size_t>(1, kMostBytes / (rows.width * sizeof(float)));
  for (size_t first = 0; first < rows.rows; first += at_once) {
    const size_t count = std::min(at_once, rows.rows - first);
    pieces_.clear();
    for (const RowShare& share : shares_) pieces_.push_back(share.count * count * sizeof(float));
    // The pieces of one row follow each other where they are.
    if (count == 1) {
      ranks_.gather(std::as_writable_bytes(std::span(rows.row(first), rows.width)), pieces_, to);
      continue;
    }
    packed_.resize(rows.width * count);
    const auto place = [&](uint32_t rank, size_t row) {
      return packed_.data() + shares_[rank].begin * count + row * shares_[rank].count;
    };
    for (size_t i = 0; i < count; ++i)
      std::memcpy(place(own, i), rows.row(first + i) + shares_[own].begin,
                  shares_[own].count * sizeof(float));
    ranks_.gather(std::as_writable_bytes(std::span(packed_)), pieces_, to);
    if (to == Ranks::To::first && own != 0) continue;
    for (uint32_t r = 0; r < ranks; ++r) {
      if (r == own) continue;
      for (size_t i = 0; i < count; ++i)
        std::memcpy(rows.row(first + i) + shares_[r].begin, place(r, i), shares_[r].count * sizeof(float));
    }
  }
}

}  // namespace quire
