#pragma once

#include <algorithm>
#include <cstring>

#include "backend/cpu/kernels.h"

namespace quire {

// Panels that are a sequence of blocks of as many columns as the format's own, kBlockBytes each. kPackRow(block, row, out) puts
// a row's block of the file to its place in a packed one; rows come in order.
template <class Format, size_t kBlockBytes, auto kPackRow>
struct PanelPacking {
  static size_t bytes(size_t cols) { return cols / Format::kValues * kBlockBytes; }

  static void pack(const MatrixView& weight, size_t panel, std::byte* out_bytes) {
    uint8_t* out = reinterpret_cast<uint8_t*>(out_bytes);
    const size_t begin = panel * kPanelRows, end = std::min(begin + kPanelRows, weight.rows);
    if (end - begin < kPanelRows) std::memset(out, 0, bytes(weight.cols));
    for (size_t r = begin; r < end; ++r) {
      const uint8_t* row = reinterpret_cast<const uint8_t*>(weight.row(r));
      for (size_t b = 0; b < weight.cols / Format::kValues; ++b)
        kPackRow(row + b * Format::kBytes, r - begin, out + b * kBlockBytes);
    }
  }

  static constexpr PanelFormat kFormat = {.panel_bytes = bytes, .pack = pack};
};

}  // namespace quire
