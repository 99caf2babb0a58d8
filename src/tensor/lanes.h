#pragma once

#include <cstdint>
#include <cstring>

// Four numbers side by side, which GCC and Clang turn into vector instructions where the machine has them:
// a loop over the lanes of an array would be taken apart before it could be vectorized. Each lane is computed
// as a number alone would be, so that results do not depend on the machine.

namespace quire {

using F32x4 __attribute__((vector_size(16))) = float;
using I32x4 __attribute__((vector_size(16))) = int32_t;

inline F32x4 load4(const void* values) {  // any alignment
  F32x4 lanes;
  std::memcpy(&lanes, values, sizeof(lanes));
  return lanes;
}

inline float sum4(F32x4 lanes) {
  return (lanes[0] + lanes[2]) + (lanes[1] + lanes[3]);
}

}  // namespace quire
