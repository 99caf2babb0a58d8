#pragma once

#include <cstddef>
#include <vector>

namespace quire {

// Two panels that fit into a core's first cache together: where every multiply-add loop takes its operands
// from, as a matrix product would.
struct PeakPanels {
  static constexpr size_t kBytes = 8192;
  alignas(64) std::byte left[kBytes];
  alignas(64) std::byte right[kBytes];
};

// A loop of multiply-adds over a tile of accumulators in registers, as dense as an instruction set allows.
struct PeakKernel {
  const char* instruction;
  double ops_per_sweep;  // over both panels; a multiply and an add are two
  // Returns the sum of all accumulators: with panels of ones, the number of multiply-adds.
  double (*run)(const PeakPanels& panels, size_t sweeps);
};

// Those that this CPU can run: never empty.
std::vector<PeakKernel> int8_peak_kernels();
std::vector<PeakKernel> f32_peak_kernels();
// Empty where bf16 are multiplied as f32.
std::vector<PeakKernel> bf16_peak_kernels();

namespace portable {
PeakKernel int8_peak_kernel();
PeakKernel f32_peak_kernel();
}  // namespace portable

}  // namespace quire
