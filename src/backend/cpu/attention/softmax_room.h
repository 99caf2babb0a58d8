#pragma once

#include <cstddef>
#include <limits>

#include "backend/cpu/vector_math.h"
#include "tensor/buffer.h"

namespace quire {

// The softmax so far of some queries: each one's maximum, sum of shares, and sum of values under their shares.
struct Softmax {
  static constexpr float kNothing = -std::numeric_limits<float>::infinity();

  float *max, *sum;  // [queries], of which the last may be no one's
  float* values;     // [queries, width]
  size_t width;

  void rescale(size_t query, float new_max) const {
    const float factor = max[query] == kNothing ? 0.0f : exp4(all4(max[query] - new_max))[0];
    max[query] = new_max;
    sum[query] *= factor;
    float* row = values + query * width;
    for (size_t i = 0; i < width; ++i) row[i] *= factor;
  }

  // Joins what a later segment of the context came to.
  void join(size_t query, const Softmax& later) const {
    if (later.max[query] == kNothing) return;
    if (later.max[query] > max[query]) rescale(query, later.max[query]);
    const float factor = exp4(all4(later.max[query] - max[query]))[0];
    sum[query] += factor * later.sum[query];
    float* row = values + query * width;
    const float* other = later.values + query * width;
    for (size_t i = 0; i < width; ++i) row[i] += factor * other[i];
  }
};

// Room for some softmaxes, which begin and have their rows at multiples of 64 bytes; it grows and stays. One allocation for
// all: theirs would be made by as many threads, and given back by one.
class SoftmaxRoom {
 public:
  // REQUIRES: `queries` and `width` are multiples of kAttendLanes.
  void resize(size_t count, size_t queries, size_t width) {
    queries_ = queries;
    width_ = width;
    const size_t bytes = count * floats() * sizeof(float);
    if (floats_.size() < bytes) floats_ = Buffer(bytes);
  }

  Softmax operator[](size_t i) const {
    float* at = floats_.as<float>() + i * floats();
    return {at, at + queries_, at + 2 * queries_, width_};
  }

 private:
  size_t floats() const { return queries_ * (2 + width_); }

  size_t queries_ = 0, width_ = 0;
  Buffer floats_;
};

}  // namespace quire
