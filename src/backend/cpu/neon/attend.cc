// Compiled for the dot-product instructions, so nothing here may be inlined elsewhere.
#if defined(__aarch64__)

#include "backend/cpu/neon/attend_dot_isa.h"
#include "backend/cpu/neon/neon_kernels.h"

namespace quire {

namespace {

struct NeonDotFar : NeonDot {
  using Fetch = FarFetch;
};

}  // namespace

void attend_neon_dot(const AttendArgs& args) {
  PagesAttention<NeonDot>(args).run();
}

void attend_neon_dot_far(const AttendArgs& args) {
  PagesAttention<NeonDotFar>(args).run();
}

}  // namespace quire

#endif
