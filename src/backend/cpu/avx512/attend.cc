// Compiled for AVX-512, so nothing here may be inlined elsewhere.
#if defined(__x86_64__)

#include "backend/cpu/avx512/attend_isa.h"
#include "backend/cpu/avx512/avx512_kernels.h"

namespace quire {

void attend_avx512(const AttendArgs& args) {
  PagesAttention<Avx512>(args).run();
}

}  // namespace quire

#endif
