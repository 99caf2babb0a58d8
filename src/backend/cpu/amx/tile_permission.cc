#include "backend/cpu/amx/tile_permission.h"

#if defined(__x86_64__) && defined(__linux__)
#include <cpuid.h>
#include <sys/syscall.h>
#include <unistd.h>
#endif

namespace quire {

#if defined(__x86_64__) && defined(__linux__)
namespace {

// The bits of CPUID leaf 7 in edx.
constexpr unsigned kTileBf16 = 22, kTiles = 24, kTileInt8 = 25;

bool may_use_tiles(unsigned products) {
  constexpr long kRequestPermission = 0x1023;  // ARCH_REQ_XCOMP_PERM
  constexpr long kTileData = 18;               // XFEATURE_XTILEDATA
  // Asked of the CPU itself: Clang 14's __builtin_cpu_supports does not know these names.
  unsigned a = 0, b = 0, c = 0, d = 0;
  if (!__get_cpuid_count(7, 0, &a, &b, &c, &d)) return false;
  const bool has_tiles = (d >> kTiles & 1u) != 0 && (d >> products & 1u) != 0;
  return has_tiles && ::syscall(SYS_arch_prctl, kRequestPermission, kTileData) == 0;
}

}  // namespace

bool may_use_int8_tiles() {
  return may_use_tiles(kTileInt8);
}

bool may_use_bf16_tiles() {
  return may_use_tiles(kTileBf16);
}
#else
bool may_use_int8_tiles() {
  return false;
}

bool may_use_bf16_tiles() {
  return false;
}
#endif

}  // namespace quire
