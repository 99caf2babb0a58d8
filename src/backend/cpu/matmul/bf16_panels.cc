#include "backend/cpu/matmul/bf16_panels.h"

#include <algorithm>
#include <cstring>

namespace quire {
namespace {

size_t panel_bytes(size_t cols) {
  return bf16_panel_cols(cols) * kPanelRows * sizeof(uint16_t);
}

template <size_t kTogether>
void pack_panel(const MatrixView& weight, size_t panel, std::byte* out) {
  constexpr size_t kBytes = kTogether * sizeof(uint16_t), kStep = kPanelRows * kBytes;
  const size_t begin = panel * kPanelRows, end = std::min(begin + kPanelRows, weight.rows);
  const size_t row_bytes = weight.cols * sizeof(uint16_t), whole = row_bytes / kBytes * kBytes;
  if (end - begin < kPanelRows || weight.cols % kBf16Cols != 0) std::memset(out, 0, panel_bytes(weight.cols));
  for (size_t r = begin; r < end; ++r) {
    const std::byte* row = weight.row(r);
    std::byte* place = out + (r - begin) * kBytes;
    for (size_t at = 0; at < whole; at += kBytes, place += kStep) std::memcpy(place, row + at, kBytes);
    if (whole < row_bytes) std::memcpy(place, row + whole, row_bytes - whole);
  }
}

}  // namespace

template <size_t kTogether>
PanelFormat bf16_panel_format() {
  return {.panel_bytes = panel_bytes, .pack = pack_panel<kTogether>};
}

template PanelFormat bf16_panel_format<2>();
template PanelFormat bf16_panel_format<4>();

}  // namespace quire
