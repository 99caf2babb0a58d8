#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "tensor/code_books.h"
#include "tensor/lanes.h"

namespace quire::format {

// The entries of a code book that are near a point. Every value of the point is brought to the nearest of the book's magnitudes;
// for each of the few thousand points that there then are the nearest entries are known, and of those the one with the least weighted
// error is taken.
template <class Entry, size_t kEntries, size_t kLevels>
class BookSearch {
 public:
  static constexpr size_t kValues = sizeof(Entry);  // of one entry
  static constexpr size_t kNear = 16;

  // `levels`: the magnitudes, ascending; what an entry stands for is its bytes plus `offset`.
  BookSearch(const std::array<Entry, kEntries>& book, const std::array<int8_t, kLevels>& levels, int offset);

  // REQUIRES: no value is NaN.
  uint32_t nearest(const float* wanted, const float* weights) const;
  const float* values(uint32_t entry) const { return values_.data() + entry * kValues; }

 private:
  static constexpr size_t points() {
    size_t count = 1;
    for (size_t i = 0; i < kValues; ++i) count *= kLevels;
    return count;
  }

  std::array<float, kLevels - 1> borders_;
  std::vector<float> values_;           // [entries, kValues]
  std::vector<uint16_t> near_entries_;  // [points, kNear], the nearest first
};

template <class Entry, size_t kEntries, size_t kLevels>
BookSearch<Entry, kEntries, kLevels>::BookSearch(const std::array<Entry, kEntries>& book,
                                                 const std::array<int8_t, kLevels>& levels, int offset)
    : values_(kEntries * kValues), near_entries_(points() * kNear) {
  for (size_t l = 0; l + 1 < kLevels; ++l) borders_[l] = 0.5f * float(levels[l] + levels[l + 1]);
  std::vector<int8_t> by_value(kValues * kEntries);
  for (size_t e = 0; e < kEntries; ++e) {
    for (size_t i = 0; i < kValues; ++i) {
      const int value = int(book[e] >> (8 * i) & 255) + offset;
      values_[e * kValues + i] = float(value);
      by_value[i * kEntries + e] = int8_t(value);
    }
  }
  std::vector<uint32_t> distances(kEntries), keys(kEntries);
  for (size_t point = 0; point < points(); ++point) {
    std::fill(distances.begin(), distances.end(), 0u);
    for (size_t i = 0, rest = point; i < kValues; ++i, rest /= kLevels) {
      const int value = levels[rest % kLevels];
      for (size_t e = 0; e < kEntries; ++e) {
        const int off = by_value[i * kEntries + e] - value;
        distances[e] += uint32_t(off * off);
      }
    }
    for (uint32_t e = 0; e < kEntries; ++e) keys[e] = distances[e] << 11 | e;  // at most 8 * 58^2
    std::partial_sort(keys.begin(), keys.begin() + kNear, keys.end());
    for (size_t n = 0; n < kNear; ++n) near_entries_[point * kNear + n] = uint16_t(keys[n] & 2047);
  }
  static_assert(kEntries <= 2048);
}

template <class Entry, size_t kEntries, size_t kLevels>
uint32_t BookSearch<Entry, kEntries, kLevels>::nearest(const float* wanted, const float* weights) const {
  size_t point = 0;
  for (size_t i = kValues; i-- > 0;) {
    size_t level = 0;
    for (const float border : borders_) level += wanted[i] > border ? 1 : 0;
    point = point * kLevels + level;
  }
  const uint16_t* near = near_entries_.data() + point * kNear;
  uint32_t best = near[0];
  float best_error = 0;
  for (size_t n = 0; n < kNear; ++n) {
    F32x4 sum = {};
    for (size_t i = 0; i < kValues; i += 4) {
      const F32x4 off = load4(wanted + i) - load4(values(near[n]) + i);
      sum += load4(weights + i) * off * off;
    }
    const float error = sum4(sum);
    if (n > 0 && !(error < best_error)) continue;
    best = near[n];
    best_error = error;
  }
  return best;
}

}  // namespace quire::format
