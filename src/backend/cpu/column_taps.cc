#include <algorithm>

#include "backend/cpu/cpu_backend.h"
#include "base/check.h"

namespace quire {
namespace {

constexpr size_t kTapColumns = 256;  // that a thread takes

}  // namespace

void CpuBackend::tap_columns(const Rows& rows, std::span<const uint32_t> matrices, const ColumnSums& sums) {
  if (sums.squares.empty()) return;
  CHECK(sums.squares.size() == sums.tokens.size() * rows.width);
  CHECK(matrices.empty() ? sums.tokens.size() == 1 : matrices.size() == rows.rows);
  const auto matrix_of = [&](size_t row) { return matrices.empty() ? 0 : matrices[row]; };
  for (size_t row = 0; row < rows.rows; ++row) sums.tokens[matrix_of(row)] += 1;
  pool_.parallel_for((rows.width + kTapColumns - 1) / kTapColumns, 1, [&](size_t begin, size_t end) {
    const size_t first = begin * kTapColumns, last = std::min(end * kTapColumns, rows.width);
    for (size_t row = 0; row < rows.rows; ++row) {
      const float* in = rows.row(row);
      float* out = sums.squares.data() + matrix_of(row) * rows.width;
      for (size_t col = first; col < last; ++col) out[col] += in[col] * in[col];
    }
  });
}

}  // namespace quire
