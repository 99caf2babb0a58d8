// One core's speed of the matrix kernels by weight type and number of tokens, in operations (two per multiply-add, also
// as a share of the core's int8 peak, or of its bf16 peak for bf16) and in bytes of weights:
//
//   matmul_bench                            every kernel set and type, with 1 and 126 tokens
//   matmul_bench amx,avx512 q4_0 8 16 512   these sets, this type, and these tokens; "all" is any set or type
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <vector>

#include "backend/cpu/kernel_choice.h"
#include "backend/cpu/yardstick.h"
#include "tensor/buffer.h"
#include "tensor/quantize.h"

namespace quire {
namespace {

constexpr size_t kCols = 2048, kRows = 4096;
constexpr size_t kManyRows =
    256;  // that are multiplied with more than kFewTokens: what a thread gets at a time
constexpr size_t kFewTokens = 4;

double best_seconds(const CpuKernels& kernels, const MatmulArgs& args) {
  double best = 1e9;
  for (int i = 0; i < 5; ++i) {
    const auto begin = std::chrono::steady_clock::now();
    kernels.matmul[size_t(args.weight.dtype)](args);
    best = std::min(best, std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count());
  }
  return best;
}

void measure(const CpuKernels& kernels, DType dtype, const std::vector<size_t>& token_counts, double peak) {
  const size_t most_tokens = *std::max_element(token_counts.begin(), token_counts.end());
  Buffer weight(kRows * row_bytes(dtype, kCols));
  std::vector<float> values(kCols);
  for (size_t i = 0; i < kCols; ++i) values[i] = float(i * 7919 % 2003) / 1001.0f - 1.0f;
  const size_t bytes = row_bytes(dtype, kCols);
  if (is_writable(dtype)) quantize_row(dtype, values, weight.data());  // else zeros, which take as long
  for (size_t r = 1; r < kRows; ++r) std::copy_n(weight.data(), bytes, weight.data() + r * bytes);
  const ActivationForm form = kernels.form[size_t(dtype)];
  const size_t stride = activation_row_bytes(form, kCols);
  Buffer input(most_tokens * stride);
  for (size_t t = 0; t < most_tokens; ++t) {
    kernels.quantize_activation[size_t(form)](values.data(), kCols, input.data() + t * stride);
  }
  const PanelFormat& format = kernels.panels[size_t(dtype)];
  const size_t panel_bytes = format.pack != nullptr ? format.panel_bytes(kCols) : 0;
  Buffer panels(kRows / kPanelRows * panel_bytes);
  for (size_t p = 0; panel_bytes > 0 && p < kRows / kPanelRows; ++p) {
    format.pack({weight.data(), dtype, kRows, kCols}, p, panels.data() + p * panel_bytes);
  }
  std::vector<float> out(kRows * most_tokens);
  for (size_t tokens : token_counts) {
    const size_t rows = tokens <= kFewTokens ? kRows : kManyRows;
    const double seconds = best_seconds(kernels, {.weight = {weight.data(), dtype, kRows, kCols},
                                                  .panels = panels.data(),
                                                  .input = input.data(),
                                                  .input_stride_bytes = stride,
                                                  .tokens = tokens,
                                                  .row_begin = 0,
                                                  .row_end = rows,
                                                  .out = out.data(),
                                                  .out_stride = kRows});
    const double gops = 2e-9 * double(rows * kCols * tokens) / seconds;
    std::printf("%-8s %-8s %4zu tokens: %7.1f GOPS, %5.1f %% of the peak, %6.2f GB/s\n", kernels.name,
                traits(dtype).name.data(), tokens, gops, 100 * gops / peak,
                1e-9 * double(rows * bytes) / seconds);
  }
}

// Whether a name is among those of a list with commas.
bool is_wanted(const std::string& list, const std::string& name) {
  return list == "all" || ("," + list + ",").find("," + name + ",") != std::string::npos;
}

}  // namespace
}  // namespace quire

int main(int count, char** arguments) {
  using namespace quire;
  const std::string sets = count > 1 ? arguments[1] : "all", types = count > 2 ? arguments[2] : "all";
  std::vector<size_t> tokens;
  for (int i = 3; i < count; ++i) tokens.push_back(std::max(1ul, std::strtoul(arguments[i], nullptr, 10)));
  if (tokens.empty()) tokens = {1, 126};
  const MachineRates core = CpuYardstick(1, {.seconds = 1, .buffer_bytes = 1 << 20}).measure();
  std::printf("one core: int8 %.0f GOPS (%s), bf16 %.0f GFLOPS (%s)\n", core.int8_gops,
              core.int8_instruction.c_str(), core.bf16_gflops, core.bf16_instruction.c_str());
  for (const CpuKernels& kernels : present_kernels()) {
    for (size_t i = 0; i < kDTypeCount; ++i) {
      if (kernels.matmul[i] == nullptr || !is_wanted(sets, kernels.name)) continue;
      if (is_wanted(types, std::string(traits(DType(i)).name)))
        measure(kernels, DType(i), tokens, DType(i) == DType::bf16 ? core.bf16_gflops : core.int8_gops);
    }
  }
}
