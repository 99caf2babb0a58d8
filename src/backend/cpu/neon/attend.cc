// Compiled for the dot-product instructions, so nothing here may be inlined elsewhere.
#if defined(__aarch64__)

#include "backend/cpu/neon/attend_isa.h"
#include "backend/cpu/neon/neon_kernels.h"

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

void attend_neon_dot(const AttendArgs& args) {
  PagesAttention<NeonDot>(args).run();
}

}  // namespace quire

#endif
