#pragma once

#include <algorithm>
#include <cmath>
#include <cstring>
#include <random>
#include <span>
#include <vector>

#include "backend/cpu/kernels.h"
#include "backend/cpu/matmul/panel_outliers.h"
#include "tensor/buffer.h"
#include "tensor/quantize.h"

// What the tests of matrix kernels multiply.

namespace quire {

inline std::vector<float> gaussian(size_t count, uint32_t seed) {
  std::mt19937 random(seed);
  std::vector<float> values(count);
  for (float& value : values) {
    const double u = (double(random()) + 1.0) / 4294967296.0, v = double(random()) / 4294967296.0;
    value = float(std::sqrt(-2.0 * std::log(u)) * std::cos(6.283185307179586 * v));
  }
  return values;
}

// A weight matrix and activations, both random; products by any kernels over any part of them.
struct MatmulCase {
  DType dtype;
  size_t rows, cols, tokens;
  std::vector<std::byte> weight;
  std::vector<float> input;  // [tokens, cols]

  MatmulCase(DType dtype, size_t rows, size_t cols, size_t tokens)
      : dtype(dtype), rows(rows), cols(cols), tokens(tokens), weight(rows * row_bytes(dtype, cols) + 1) {
    const std::vector<float> values = gaussian(rows * cols, uint32_t(rows * 31 + cols));
    if (has_book(dtype)) fill_with_any_codes();
    for (size_t r = 0; r < rows && !has_book(dtype); ++r) {
      quantize_row(dtype, std::span(values).subspan(r * cols, cols), matrix().data_at(r));
    }
    input = gaussian(tokens * cols, uint32_t(tokens + 1000));
  }

  // For types that nothing is written in: any bytes, and scales below a hundredth.
  void fill_with_any_codes() {
    std::mt19937 random(uint32_t(rows * 31 + cols));
    const size_t block = traits(dtype).block_bytes;
    for (std::byte& byte : weight) byte = std::byte(random());
    for (size_t at = 1; at + block <= weight.size(); at += block) {
      const uint16_t scale = uint16_t(0x1c00 + random() % 0x400);
      if (dtype != DType::iq1_m) std::memcpy(weight.data() + at, &scale, sizeof(scale));
      for (size_t k = 0; dtype == DType::iq1_m && k < 4; ++k) {  // its scale is at the top of four words
        std::byte& top = weight[at + 49 + 2 * k];
        top = (top & std::byte(15)) | std::byte((scale >> (4 * k) & 15) << 4);
      }
    }
  }

  // Some channels of all tokens and some values of single ones stand far above the others.
  MatmulCase& add_outliers() {
    for (size_t t = 0; t < tokens; ++t) {
      for (size_t i = 0; i < cols; ++i) {
        if (i % 131 == 7 || (t * cols + i) % 397 == 3) input[t * cols + i] *= 40.0f;
      }
    }
    return *this;
  }

  // One byte off any alignment: weights come from files.
  struct Matrix : MatrixView {
    std::byte* data_at(size_t r) const { return const_cast<std::byte*>(row(r)); }
  };
  Matrix matrix() const { return {{weight.data() + 1, dtype, rows, cols}}; }

  Buffer input_rows(const CpuKernels& kernels) const {
    const ActivationForm form = kernels.form[size_t(dtype)];
    const size_t stride = activation_row_bytes(form, cols);
    Buffer bytes(tokens * stride);
    for (size_t t = 0; t < tokens; ++t) {
      kernels.quantize_activation[size_t(form)](input.data() + t * cols, cols, bytes.data() + t * stride);
    }
    return bytes;
  }

  Buffer packed(const CpuKernels& kernels) const {
    const PanelFormat& format = kernels.panels[size_t(dtype)];
    if (format.pack == nullptr) return {};
    const size_t panels = (rows + kPanelRows - 1) / kPanelRows, bytes = format.panel_bytes(cols);
    Buffer buffer(panels * bytes);
    for (size_t p = 0; p < panels; ++p) format.pack(matrix(), p, buffer.data() + p * bytes);
    return buffer;
  }

  // Into out[tokens, rows], in calls of at most `call_tokens` x `call_rows`, which share `lists` if there are any.
  std::vector<float> product(const CpuKernels& kernels, size_t call_tokens, size_t call_rows,
                             OutlierLists* lists) const {
    const Buffer bytes = input_rows(kernels);
    const size_t stride = activation_row_bytes(kernels.form[size_t(dtype)], cols);
    const Buffer panels = packed(kernels);
    std::vector<float> out(tokens * rows, NAN);
    for (size_t t = 0; t < tokens; t += call_tokens) {
      for (size_t r = 0; r < rows; r += call_rows) {
        kernels.matmul[size_t(dtype)]({.weight = matrix(),
                                       .panels = panels.data(),
                                       .input = bytes.data() + t * stride,
                                       .input_stride_bytes = stride,
                                       .tokens = std::min(call_tokens, tokens - t),
                                       .row_begin = r,
                                       .row_end = std::min(r + call_rows, rows),
                                       .out = out.data() + t * rows,
                                       .out_stride = rows,
                                       .outliers = lists});
      }
    }
    return out;
  }
  std::vector<float> product(const CpuKernels& kernels, size_t call_tokens, size_t call_rows) const {
    OutlierLists lists;
    return product(kernels, call_tokens, call_rows, &lists);
  }
  std::vector<float> product(const CpuKernels& kernels) const { return product(kernels, tokens, rows); }

  // The same with dequantized weights, in double precision.
  std::vector<double> true_product() const {
    return sums_of([](double weight, double value) { return weight * value; });
  }
  // And of the products' magnitudes.
  std::vector<double> magnitudes() const {
    return sums_of([](double weight, double value) { return std::fabs(weight * value); });
  }

 private:
  template <class F>
  std::vector<double> sums_of(F f) const {
    std::vector<double> out(tokens * rows);
    std::vector<float> row(cols);
    for (size_t r = 0; r < rows; ++r) {
      dequantize_row(dtype, matrix().row(r), row);
      for (size_t t = 0; t < tokens; ++t) {
        double sum = 0.0;
        for (size_t i = 0; i < cols; ++i) sum += f(double(row[i]), double(input[t * cols + i]));
        out[t * rows + r] = sum;
      }
    }
    return out;
  }
};

}  // namespace quire
