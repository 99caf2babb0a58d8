#include "backend/cpu/panels.h"

#include <algorithm>

namespace quire {
namespace {

constexpr size_t kMissing = 16;  // no index of a table

template <class Format>
uint8_t table_index(int8_t code) {
  for (size_t i = 0; i < kMissing; ++i) {
    if (CodeTable<Format>::code(i) == code) return uint8_t(i);
  }
  return 0;  // mxfp4's negative zero
}

void put_half(uint8_t* step, size_t row, size_t column, uint8_t low) {
  const size_t g = column / 4;
  uint8_t& byte = step[(g % 4) * 64 + row * 4 + column % 4];
  byte = uint8_t(byte | (g < 4 ? low : low << 4));
}

template <class Format>
void put_code(uint8_t* step, size_t row, size_t column, int8_t code) {
  const size_t g = column / 4, place = row * 4 + column % 4;
  switch (kCoding<Format>) {
    case Coding::byte:
      step[g * 64 + place] = uint8_t(code);
      break;
    case Coding::widened:
      put_half(step, row, column, uint8_t(code / 16) & 15);
      break;
    case Coding::table:
      if constexpr (kCoding<Format> == Coding::table) put_half(step, row, column, table_index<Format>(code));
      break;
    case Coding::five:
    case Coding::six: {
      const int moved = code - kLowest<Format>;
      put_half(step, row, column, uint8_t(moved & 15));
      uint8_t* high = step + 256;
      if (kCoding<Format> == Coding::five) {
        high[place] = uint8_t(high[place] | (moved >> 4) << g);
      } else {
        high[g / 4 * 64 + place] = uint8_t(high[g / 4 * 64 + place] | (moved >> 4) << (2 * (g % 4)));
      }
      break;
    }
  }
}

template <class Format>
void pack_row_block(const uint8_t* block, size_t row, uint8_t* out) {
  using Packed = PackedBlock<Format>;
  typename Packed::Uniform uniform;
  uniform.unpack(block);
  for (size_t i = 0; i < Packed::kValues; ++i) {
    put_code<Format>(out + Packed::kStart + i / 32 * Packed::kStepBytes, row, i % 32, uniform.codes[i]);
  }
  if constexpr (Packed::kHasSubScales) {
    Codes256 raw;
    Format::unpack(block, raw);
    format::store_f16(raw.scale, out + 2 * row);
    for (size_t j = 0; j < Packed::kSubs; ++j) {
      out[Packed::kSubScales + 16 * j + row] = uint8_t(raw.sub_scales[j]);
      if constexpr (Packed::Uniform::kHasMin) out[Packed::kSubMins + 16 * j + row] = uint8_t(raw.sub_mins[j]);
    }
    if constexpr (Packed::Uniform::kHasMin) format::store_f16(raw.min_scale, out + Packed::kSecond + 2 * row);
  } else if constexpr (Packed::kHasExponent) {
    out[row] = block[0];
  } else {
    Codes32 raw;
    Format::unpack(block, raw);
    format::store_f16(raw.scale, out + 2 * row);
    if constexpr (Packed::Uniform::kHasMin) format::store_f16(raw.offset, out + Packed::kSecond + 2 * row);
  }
}

template <class Format>
size_t panel_bytes(size_t cols) {
  return cols / Format::kValues * PackedBlock<Format>::kBytes;
}

template <class Format>
void pack_panel(const MatrixView& weight, size_t panel, std::byte* bytes) {
  uint8_t* out = reinterpret_cast<uint8_t*>(bytes);
  std::memset(out, 0, panel_bytes<Format>(weight.cols));
  const size_t begin = panel * kPanelRows, end = std::min(begin + kPanelRows, weight.rows);
  for (size_t r = begin; r < end; ++r) {
    const uint8_t* row = reinterpret_cast<const uint8_t*>(weight.row(r));
    for (size_t b = 0; b < weight.cols / Format::kValues; ++b) {
      pack_row_block<Format>(row + b * Format::kBytes, r - begin, out + b * PackedBlock<Format>::kBytes);
    }
  }
}

}  // namespace

template <class Format>
PanelFormat panel_format() {
  return {.panel_bytes = panel_bytes<Format>, .pack = pack_panel<Format>};
}

#define QUIRE_FORMAT(dtype, Format, activation) template PanelFormat panel_format<format::Format>();
#include "backend/cpu/quantized_formats.inc"
#undef QUIRE_FORMAT

}  // namespace quire
