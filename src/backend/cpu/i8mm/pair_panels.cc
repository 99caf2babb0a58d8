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

// REQUIRES: in order of rows.
template <class Format>
void pack_row_block(const uint8_t* block, size_t row, uint8_t* out) {
  using Packed = PairBlock<Format>;
  std::conditional_t<Packed::kHasSubScales, Codes256, Codes32> raw;
  Format::unpack(block, raw);
  for (size_t c = 0; c < Packed::kValues; c += 8)
    put_eight<Format>(raw.codes + c, row, out + Packed::kStart + c / 8 * Packed::kEightBytes);
  format::store_f16(raw.scale, out + 2 * row);
  if constexpr (Packed::kHasSubScales) {
    for (size_t j = 0; j < Packed::kSubs; ++j)
      out[Packed::kSubScales + 16 * j + row] = uint8_t(raw.sub_scales[j]);
    if constexpr (Packed::Uniform::kHasMin) {
      static_assert(Packed::kSubs == 8);
      std::memcpy(out + Packed::kSubMins + 8 * row, raw.sub_mins, 8);
      format::store_f16(raw.min_scale, out + Packed::kSecond + 2 * row);
    }
  }
}

}  // namespace

template <class Format>
PanelFormat pair_format() {
  return PanelPacking<Format, PairBlock<Format>::kBytes, pack_row_block<Format>>::kFormat;
}

template PanelFormat pair_format<format::Q4_0>();
template PanelFormat pair_format<format::Q4_K>();
template PanelFormat pair_format<format::Q6_K>();
template PanelFormat pair_format<format::Q8_0>();

}  // namespace quire

#endif
