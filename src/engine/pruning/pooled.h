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

}  // namespace quire
