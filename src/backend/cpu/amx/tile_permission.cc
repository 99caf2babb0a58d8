#include "backend/cpu/amx/tile_permission.h"

#if defined(__x86_64__) && defined(__linux__)
#include <cpuid.h>
#include <sys/syscall.h>
#include <unistd.h>
#endif

namespace quire {

#if defined(__x86_64__) && defined(__linux__)
bool may_use_int8_tiles() {
  constexpr long kRequestPermission = 0x1023;  // ARCH_REQ_XCOMP_PERM
  constexpr long kTileData = 18;               // XFEATURE_XTILEDATA
  // Asked of the CPU itself: Clang 14's __builtin_cpu_supports does not know these names.
  unsigned a = 0, b = 0, c = 0, d = 0;
  if (!__get_cpuid_count(7, 0, &a, &b, &c, &d)) return false;
  const bool has_tiles = (d >> 24 & 1u) != 0 && (d >> 25 & 1u) != 0;  // amx-tile, amx-int8
  return has_tiles && ::syscall(SYS_arch_prctl, kRequestPermission, kTileData) == 0;
}
#else
bool may_use_int8_tiles() {
  return false;
}
#endif

}  // namespace quire
