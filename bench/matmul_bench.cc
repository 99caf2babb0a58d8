// One core's speed of the matrix kernels by weight type: a product with many tokens in operations (two per
// multiply-add), one with a single token in bytes of weights.
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <vector>

#include "backend/cpu/kernel_choice.h"
#include "tensor/buffer.h"
#include "tensor/quantize.h"

namespace quire {
namespace {

double best_seconds(const CpuKernels& kernels, const MatmulArgs& args) {
  double best = 1e9;
  for (int i = 0; i < 5; ++i) {
    const auto begin = std::chrono::steady_clock::now();
    kernels.matmul[size_t(args.weight.dtype)](args);
    best = std::min(best, std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count());
  }
  return best;
}

void measure(const CpuKernels& kernels, DType dtype) {
  constexpr size_t kCols = 2048, kRows = 4096, kPrefillRows = 256, kTokens = 126;
  Buffer weight(kRows * row_bytes(dtype, kCols));
  std::vector<float> values(kCols);
  for (size_t i = 0; i < kCols; ++i) values[i] = float(i * 7919 % 2003) / 1001.0f - 1.0f;
  const size_t bytes = row_bytes(dtype, kCols);
  quantize_row(dtype, values, weight.data());
  for (size_t r = 1; r < kRows; ++r) std::copy_n(weight.data(), bytes, weight.data() + r * bytes);
  const ActivationForm form = kernels.form[size_t(dtype)];
  const size_t stride = activation_row_bytes(form, kCols);
  Buffer input(kTokens * stride);
  for (size_t t = 0; t < kTokens; ++t) {
    kernels.quantize_activation[size_t(form)](values.data(), kCols, input.data() + t * stride);
  }
  const PanelFormat& format = kernels.panels[size_t(dtype)];
  const size_t panel_bytes = format.pack != nullptr ? format.panel_bytes(kCols) : 0;
  Buffer panels(kRows / kPanelRows * panel_bytes);
  for (size_t p = 0; panel_bytes > 0 && p < kRows / kPanelRows; ++p) {
    format.pack({weight.data(), dtype, kRows, kCols}, p, panels.data() + p * panel_bytes);
  }
  std::vector<float> out(kRows * kTokens);
  MatmulArgs args = {.weight = {weight.data(), dtype, kRows, kCols},
                     .panels = panels.data(),
                     .input = input.data(),
                     .input_stride_bytes = stride,
                     .tokens = kTokens,
                     .row_begin = 0,
                     .row_end = kPrefillRows,
                     .out = out.data(),
                     .out_stride = kRows};
  const double prefill = best_seconds(kernels, args);
  args.tokens = 1;
  args.row_end = kRows;
  const double decode = best_seconds(kernels, args);
  std::printf("%-7s %-8s %6.1f GOPS with %zu tokens, %6.2f GB/s with one (%.1f GOPS)\n", kernels.name,
              traits(dtype).name.data(), 2e-9 * kPrefillRows * kCols * kTokens / prefill, kTokens,
              1e-9 * double(weight.size()) / decode, 2e-9 * kRows * kCols / decode);
}

}  // namespace
}  // namespace quire

int main() {
  using namespace quire;
  for (const CpuKernels& kernels : present_kernels()) {
    for (size_t i = 0; i < kDTypeCount; ++i) {
      if (kernels.matmul[i] != nullptr) measure(kernels, DType(i));
    }
  }
}
