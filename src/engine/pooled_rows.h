#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "model/pooling.h"

namespace quire {

// The one vector that rows come to, one for each token of a prompt. They are added in the order of their positions, so that
// the sum has the same bits whatever the steps that computed them. What was added stays: a row that is computed again after a
// preemption is not wanted any more. Engine thread only.
class PooledRows {
 public:
  PooledRows(Pooling pooling, uint32_t count) : pooling_(pooling), count_(count) {}

  bool wants_all() const { return pooling_ != Pooling::last; }
  bool wants(uint32_t position) const {
    return position >= added_ && (pooling_ == Pooling::mean  ? true
                                  : pooling_ == Pooling::cls ? position == 0
                                                             : position + 1 == count_);
  }
  bool wants_any(uint32_t first, uint32_t count) const {
    for (uint32_t i = 0; i < count; ++i) {
      if (wants(first + i)) return true;
    }
    return false;
  }
  // REQUIRES: it wants that position, and there is none before it that it wants.
  void add(uint32_t position, std::span<const float> row);
  // Of the prompt: how many tokens may come from the cache.
  uint32_t findable() const { return wants_all() ? added_ : count_; }
  // REQUIRES: all rows that it wants were added.
  std::vector<float> take();

 private:
  Pooling pooling_;
  uint32_t count_;
  uint32_t added_ = 0;  // those before it are not wanted
  std::vector<double> sum_;
};

// Of length 1, as whoever compares vectors expects them; before that it is cut to its first `width` numbers, if that is not 0 (for
// models whose first numbers say most). One of zeros stays as it is. REQUIRES: width <= vector.size().
std::vector<float> as_unit(std::vector<float> vector, size_t width = 0);

}  // namespace quire
