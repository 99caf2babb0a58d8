#pragma once

#include <cstddef>
#include <cstdint>

#include "base/check.h"
#include "tensor/dtype.h"

namespace quire {

// Rows of f32 that someone else owns: [rows, width], a row every `stride` values. What activations are passed
// as.
struct Rows {
  float* data = nullptr;
  size_t rows = 0;
  size_t width = 0;
  size_t stride = 0;

  float* row(size_t index) const { return data + index * stride; }
  explicit operator bool() const { return data != nullptr; }

  // Columns [begin, begin + count) of every row.
  Rows columns(size_t begin, size_t count) const {
    CHECK(begin + count <= width);
    return {data + begin, rows, count, stride};
  }
  Rows first(size_t count) const {
    CHECK(count <= rows);
    return {data, count, width, stride};
  }
};

// A matrix (or vector, with one row) in any format that someone else owns: rows are contiguous and follow
// each other.
struct MatrixView {
  const std::byte* data = nullptr;
  DType dtype = DType::f32;
  size_t rows = 0;
  size_t cols = 0;

  explicit operator bool() const { return data != nullptr; }
  size_t bytes() const { return rows * row_bytes(dtype, cols); }
  const std::byte* row(size_t index) const { return data + index * row_bytes(dtype, cols); }
  MatrixView slice(size_t begin, size_t count) const {
    CHECK(begin + count <= rows);
    return {row(begin), dtype, count, cols};
  }
};

}  // namespace quire
