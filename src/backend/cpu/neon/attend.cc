// Compiled for the dot-product instructions, so nothing here may be inlined elsewhere.
#if defined(__aarch64__)

#include "backend/cpu/neon/attend_dot_isa.h"
#include "backend/cpu/neon/neon_kernels.h"

namespace quire {

void attend_neon_dot(const AttendArgs& args) {
  PagesAttention<NeonDot>(args).run();
}

}  // namespace quire

#endif
