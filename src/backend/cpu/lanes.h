#pragma once

#include <cstddef>

namespace quire {

// Sums in 16 fixed lanes that are added in a fixed tree: the same result from every compiler and vector
// width, and a shape that compilers vectorize without being allowed to reorder.
inline constexpr size_t kLanes = 16;

inline float sum_lanes(const float* lanes) {
  float sums[kLanes];
  for (size_t i = 0; i < kLanes; ++i) sums[i] = lanes[i];
  for (size_t width = kLanes / 2; width > 0; width /= 2) {
    for (size_t i = 0; i < width; ++i) sums[i] += sums[i + width];
  }
  return sums[0];
}

inline float dot(const float* a, const float* b, size_t count) {
  float lanes[kLanes] = {};
  size_t i = 0;
  for (; i + kLanes <= count; i += kLanes) {
    for (size_t lane = 0; lane < kLanes; ++lane) lanes[lane] += a[i + lane] * b[i + lane];
  }
  for (size_t lane = 0; i < count; ++i, ++lane) lanes[lane] += a[i] * b[i];
  return sum_lanes(lanes);
}

inline float sum(const float* a, size_t count) {
  float lanes[kLanes] = {};
  size_t i = 0;
  for (; i + kLanes <= count; i += kLanes) {
    for (size_t lane = 0; lane < kLanes; ++lane) lanes[lane] += a[i + lane];
  }
  for (size_t lane = 0; i < count; ++i, ++lane) lanes[lane] += a[i];
  return sum_lanes(lanes);
}

}  // namespace quire
