#pragma once

#include <cstddef>
#include <cstdint>
#include <random>
#include <vector>

#include "tensor/quantize.h"
#include "tensor/tensor_view.h"

namespace quire::cuda {

// Of tests and benchmarks only: a matrix of normal numbers as a file would hold it, the same on every machine.
class RandomWeight {
 public:
  RandomWeight(DType dtype, size_t rows, size_t cols, uint32_t seed)
      : dtype_(dtype), rows_(rows), cols_(cols) {
    const size_t bytes = row_bytes(dtype, cols);
    bytes_.resize(rows * bytes);
    std::mt19937 random(seed);
    std::vector<float> row(cols);
    for (size_t r = 0; r < rows; ++r) {
      for (float& value : row) value = normal(random);
      quantize_row(dtype, row, bytes_.data() + r * bytes);
    }
  }

  MatrixView view() const { return {bytes_.data(), dtype_, rows_, cols_}; }

 private:
  // The sum of four uniform numbers, because standard libraries differ in their normal distributions.
  static float normal(std::mt19937& random) {
    float sum = 0;
    for (int i = 0; i < 4; ++i) sum += float(random() >> 8) * 0x1p-24f - 0.5f;
    return sum * 0.05f;
  }

  DType dtype_;
  size_t rows_, cols_;
  std::vector<std::byte> bytes_;
};

}  // namespace quire::cuda
