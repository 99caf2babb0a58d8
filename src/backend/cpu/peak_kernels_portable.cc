#include <cstdint>
#include <cstring>

#include "backend/cpu/peak_kernels.h"

namespace quire {
namespace portable {
namespace {

constexpr size_t kLanes = 64;  // independent sums, for a compiler to put into vectors

// Sums wrap, as those of the instructions do.
double run_int8(const PeakPanels& panels, size_t sweeps) {
  uint32_t sums[kLanes] = {};
  const auto* left = reinterpret_cast<const int8_t*>(panels.left);
  const auto* right = reinterpret_cast<const int8_t*>(panels.right);
  for (size_t sweep = 0; sweep < sweeps; ++sweep) {
    for (size_t k = 0; k < PeakPanels::kBytes; k += kLanes) {
      for (size_t i = 0; i < kLanes; ++i) sums[i] += uint32_t(int32_t(left[k + i]) * int32_t(right[k + i]));
    }
  }
  double total = 0;
  for (uint32_t sum : sums) total += int32_t(sum);
  return total;
}

double run_f32(const PeakPanels& panels, size_t sweeps) {
  constexpr size_t kValues = PeakPanels::kBytes / sizeof(float);
  float sums[kLanes] = {};
  const auto* left = reinterpret_cast<const float*>(panels.left);
  const auto* right = reinterpret_cast<const float*>(panels.right);
  for (size_t sweep = 0; sweep < sweeps; ++sweep) {
    for (size_t k = 0; k < kValues; k += kLanes) {
      for (size_t i = 0; i < kLanes; ++i) sums[i] += left[k + i] * right[k + i];
    }
  }
  double total = 0;
  for (float sum : sums) total += sum;
  return total;
}

}  // namespace

PeakKernel int8_peak_kernel() {
  return {"portable", 2.0 * PeakPanels::kBytes, run_int8};
}

PeakKernel f32_peak_kernel() {
  return {"portable", 2.0 * PeakPanels::kBytes / sizeof(float), run_f32};
}

}  // namespace portable

#if !defined(__aarch64__) && !defined(__x86_64__)
std::vector<PeakKernel> int8_peak_kernels() {
  return {portable::int8_peak_kernel()};
}

std::vector<PeakKernel> f32_peak_kernels() {
  return {portable::f32_peak_kernel()};
}

std::vector<PeakKernel> bf16_peak_kernels() {
  return {};
}
#endif

}  // namespace quire
