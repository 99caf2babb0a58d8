// Attention with NEON and its dot products. Included by files that are compiled for them, so nothing here may have a name
// that the linker sees.
#pragma once

#include "backend/cpu/neon/attend_isa.h"

namespace quire {
namespace {

struct DotProducts {
  static ALWAYS_INLINE int32x4_t add(int32x4_t sum, int8x16_t a, int8x16_t b) { return vdotq_s32(sum, a, b); }
  template <int i>
  static ALWAYS_INLINE int32x4_t add_four(int32x4_t sum, int8x16_t a, int8x16_t b) {
    return vdotq_laneq_s32(sum, a, b, i);
  }
  template <int i>
  static ALWAYS_INLINE int32x4_t add_small(int32x4_t sum, int8x16_t a, int8x16_t b) {
    return vdotq_laneq_s32(sum, a, b, i);
  }
};

struct NeonDot : Neon {
  using Codes = ByteCodes<DotProducts>;
  using Nibbles = ByteNibbles<DotProducts>;
};

}  // namespace
}  // namespace quire
