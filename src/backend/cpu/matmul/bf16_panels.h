#pragma once

#include "backend/cpu/kernels.h"

namespace quire {

// bf16 weights in panels of 16 rows for instructions that add the products of a few columns at once: [columns /
// kTogether][16 rows][kTogether columns]. Columns are filled up with zeros to a multiple of kBf16Cols. The `tdpbf16ps` of
// AMX wants 2 together, `bfmmla` 4.
template <size_t kTogether>
PanelFormat bf16_panel_format();

// Always inlined: files for other instruction sets use it.
static inline __attribute__((always_inline)) size_t bf16_panel_cols(size_t cols) {
  return (cols + kBf16Cols - 1) / kBf16Cols * kBf16Cols;
}

}  // namespace quire
