#if defined(__aarch64__)

#include "backend/cpu/i8mm/pair_panels.h"

#include <cstring>

#include "backend/cpu/matmul/panel_packing.h"

namespace quire {
namespace {

// Eight codes of a row.
template <class Format>
void put_eight(const int8_t* codes, size_t row, uint8_t* eight) {
  using Packed = PairBlock<Format>;
  if constexpr (!Packed::kIsNibbles) {
    std::memcpy(eight + 8 * row, codes, 8);
    return;
  }
  uint8_t* place = eight + 8 * (row % 8);
  for (size_t i = 0; i < 8; ++i) {
    if (row < 8) {
      place[i] = uint8_t(codes[i] + (Packed::kIsSigned ? 8 : 0));
    } else {
      place[i] = uint8_t(place[i] | uint8_t(codes[i]) << 4);
    }
  }
}

template <class Format>
struct Pairs {
  using Packed = PairBlock<Format>;
  static void put_codes(const uint8_t*, const int8_t* codes, size_t row, uint8_t* out) {
    for (size_t c = 0; c < Packed::kValues; c += 8)
      put_eight<Format>(codes + c, row, out + c / 8 * Packed::kEightBytes);
  }
};

}  // namespace

template <class Format>
PanelFormat pair_format() {
  return PanelPacking<Format, Pairs<Format>>::format();
}

template PanelFormat pair_format<format::Q4_0>();
template PanelFormat pair_format<format::Q4_K>();
template PanelFormat pair_format<format::Q6_K>();
template PanelFormat pair_format<format::Q8_0>();

}  // namespace quire

#endif
