#pragma once

#include <algorithm>
#include <cstring>

#include "backend/cpu/kernels.h"
#include "backend/cpu/matmul/panels.h"

namespace quire {

// Weights are packed block by block, the same for every instruction set. A layout (`Packed`: PackedBlock, or one that is derived from it)
// says where scales, minimums and sub-scales are, and how a row's codes are put there:
//
//   template <class Format> struct Layout {
//     using Packed = ...;
//     static void put_codes(const uint8_t* block, const int8_t* codes, size_t row, uint8_t* out);  // rows come in order
//   };
template <class Format, class Layout>
class PanelPacking {
  using Packed = typename Layout::Packed;
  using Raw = std::conditional_t<Packed::kHasSubScales, Codes256,
                                 std::conditional_t<Packed::kHasSubFloats, format::Codes64, Codes32>>;

 public:
  static constexpr PanelFormat format() { return {.panel_bytes = bytes, .pack = pack}; }

 private:
  static size_t bytes(size_t cols) { return cols / Format::kValues * Packed::kBytes; }

  static void pack(const MatrixView& weight, size_t panel, std::byte* out_bytes) {
    uint8_t* out = reinterpret_cast<uint8_t*>(out_bytes);
    const size_t begin = panel * kPanelRows, end = std::min(begin + kPanelRows, weight.rows);
    if (end - begin < kPanelRows) std::memset(out, 0, bytes(weight.cols));
    for (size_t r = begin; r < end; ++r) {
      const uint8_t* row = reinterpret_cast<const uint8_t*>(weight.row(r));
      for (size_t b = 0; b < weight.cols / Format::kValues; ++b)
        pack_row_block(row + b * Format::kBytes, r - begin, out + b * Packed::kBytes);
    }
  }

  static void pack_row_block(const uint8_t* block, size_t row, uint8_t* out) {
    Raw raw;
    Format::unpack(block, raw);
    Layout::put_codes(block, raw.codes, row, out + Packed::kStart);
    if constexpr (Packed::kHasSubFloats) {
      for (size_t j = 0; j < Packed::kSubs; ++j)
        out[Packed::kScaleBytes * j + row] = Format::scale_bits(block[j]);
    } else if constexpr (Packed::kScale == WeightCodes::Scale::exponent) {
      out[row] = block[0];
    } else {
      format::store_f16(raw.scale, out + 2 * row);
    }
    if constexpr (Packed::kHasSubScales) {
      for (size_t j = 0; j < Packed::kSubs; ++j) {
        out[Packed::kSubScales + kPanelRows * j + row] = uint8_t(raw.sub_scales[j]);
        if constexpr (kHasMin<Format>) out[Packed::sub_min_at(row, j)] = uint8_t(raw.sub_mins[j]);
      }
      if constexpr (kHasMin<Format>) format::store_f16(raw.min_scale, out + Packed::kSecond + 2 * row);
    } else if constexpr (kHasMin<Format>) {
      format::store_f16(raw.offset, out + Packed::kSecond + 2 * row);
    }
  }
};

}  // namespace quire
