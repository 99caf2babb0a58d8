#pragma once

#include <algorithm>
#include <cstddef>
#include <span>
#include <vector>

namespace quire {

// Each value with its neighbours added: a fact spans some tokens, and one of them draws the attention.
inline std::vector<float> pooled(std::span<const float> values) {
  constexpr size_t kNeighbours = 3;  // on each side
  std::vector<float> sums(values.size());
  for (size_t i = 0; i < values.size(); ++i) {
    const size_t begin = i < kNeighbours ? 0 : i - kNeighbours;
    const size_t end = std::min(i + kNeighbours + 1, values.size());
    for (size_t j = begin; j < end; ++j) sums[i] += values[j];
  }
  return sums;
}

// The largest of each value and its `neighbours` on each side.
inline std::vector<float> largest_near(std::span<const float> values, size_t neighbours) {
  std::vector<float> largest(values.size());
  for (size_t i = 0; i < values.size(); ++i) {
    const size_t begin = i < neighbours ? 0 : i - neighbours;
    const size_t end = std::min(i + neighbours + 1, values.size());
    largest[i] =
        *std::max_element(values.begin() + std::ptrdiff_t(begin), values.begin() + std::ptrdiff_t(end));
  }
  return largest;
}

}  // namespace quire
