#pragma once

#include <cstdint>
#include <cstring>

// Numbers side by side, which GCC and Clang turn into vector instructions where the machine has them, for the
// loops that they would not vectorize by themselves. Each lane is computed as a number alone would be, so
// that results do not depend on the machine.

namespace quire {

using F32x4 __attribute__((vector_size(16))) = float;
using I32x4 __attribute__((vector_size(16))) = int32_t;

inline F32x4 load4(const void* values) {  // any alignment
  F32x4 lanes;
  std::memcpy(&lanes, values, sizeof(lanes));
  return lanes;
}

using U8x16 __attribute__((vector_size(16))) = uint8_t;
using I8x16 __attribute__((vector_size(16))) = int8_t;

inline U8x16 load16(const uint8_t* values) {  // any alignment
  U8x16 lanes;
  std::memcpy(&lanes, values, sizeof(lanes));
  return lanes;
}

inline void store16(I8x16 lanes, int8_t* values) {
  std::memcpy(values, &lanes, sizeof(lanes));
}

inline float sum4(F32x4 lanes) {
  return (lanes[0] + lanes[2]) + (lanes[1] + lanes[3]);
}

}  // namespace quire
