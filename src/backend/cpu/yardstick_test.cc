#include "backend/cpu/yardstick.h"

#include <algorithm>
#include <memory>

#include <gtest/gtest.h>

namespace quire {
namespace {

std::vector<PeakKernel> with(std::vector<PeakKernel> kernels, const PeakKernel& portable) {
  kernels.push_back(portable);
  return kernels;
}

TEST(PeakKernels, MakeAsManyMultiplyAddsOfInt8AsTheySay) {
  auto panels = std::make_unique<PeakPanels>();
  std::fill(std::begin(panels->left), std::end(panels->left), std::byte(1));
  std::fill(std::begin(panels->right), std::end(panels->right), std::byte(1));
  for (const PeakKernel& kernel : with(int8_peak_kernels(), portable::int8_peak_kernel())) {
    EXPECT_EQ(2 * kernel.run(*panels, 1), kernel.ops_per_sweep) << kernel.instruction;
    EXPECT_EQ(2 * kernel.run(*panels, 3), 3 * kernel.ops_per_sweep) << kernel.instruction;
  }
}

TEST(PeakKernels, MakeAsManyMultiplyAddsOfF32AsTheySay) {
  auto panels = std::make_unique<PeakPanels>();
  std::fill_n(reinterpret_cast<float*>(panels->left), PeakPanels::kBytes / sizeof(float), 1.0f);
  std::fill_n(reinterpret_cast<float*>(panels->right), PeakPanels::kBytes / sizeof(float), 1.0f);
  for (const PeakKernel& kernel : with(f32_peak_kernels(), portable::f32_peak_kernel())) {
    EXPECT_EQ(2 * kernel.run(*panels, 1), kernel.ops_per_sweep) << kernel.instruction;
    EXPECT_EQ(2 * kernel.run(*panels, 3), 3 * kernel.ops_per_sweep) << kernel.instruction;
  }
}

TEST(PeakKernels, MakeAsManyMultiplyAddsOfBf16AsTheySay) {
  auto panels = std::make_unique<PeakPanels>();
  std::fill_n(reinterpret_cast<uint16_t*>(panels->left), PeakPanels::kBytes / sizeof(uint16_t), 0x3f80);
  std::fill_n(reinterpret_cast<uint16_t*>(panels->right), PeakPanels::kBytes / sizeof(uint16_t), 0x3f80);
  for (const PeakKernel& kernel : bf16_peak_kernels()) {
    EXPECT_EQ(2 * kernel.run(*panels, 1), kernel.ops_per_sweep) << kernel.instruction;
    EXPECT_EQ(2 * kernel.run(*panels, 3), 3 * kernel.ops_per_sweep) << kernel.instruction;
  }
}

TEST(Yardstick, MeasuresEveryRateAndSaysWhatGaveIt) {
  for (uint32_t threads : {1u, 3u}) {
    CpuYardstick yardstick(threads, {.seconds = 0.001, .buffer_bytes = (1 << 20) + 77});
    const MachineRates first = yardstick.measure();
    EXPECT_GT(first.read_gb_s, 0);
    EXPECT_GT(first.int8_gops, 0);
    EXPECT_GT(first.f32_gflops, 0);
    EXPECT_GT(first.bf16_gflops, 0);
    EXPECT_EQ(first.has_bf16(), !bf16_peak_kernels().empty());
    for (const std::string& name :
         {first.read_method, first.int8_instruction, first.f32_instruction, first.bf16_instruction}) {
      EXPECT_FALSE(name.empty());
    }
    EXPECT_EQ(yardstick.measure().int8_instruction, first.int8_instruction) << "the best is kept";
  }
}

TEST(MachineRates, ChangeByTheRateThatMovedMost) {
  MachineRates before;
  before.read_gb_s = 100;
  before.int8_gops = 1000;
  before.f32_gflops = 500;
  MachineRates after = before;
  EXPECT_EQ(largest_change(before, after), 0);
  after.int8_gops = 950;
  after.read_gb_s = 80;
  EXPECT_DOUBLE_EQ(largest_change(before, after), 0.2);
  EXPECT_DOUBLE_EQ(largest_change(after, before), 0.2);
  after.f32_gflops = 600;
  const MachineRates best = best_of(before, after);
  EXPECT_EQ(best.read_gb_s, 100);
  EXPECT_EQ(best.int8_gops, 1000);
  EXPECT_EQ(best.f32_gflops, 600);
}

}  // namespace
}  // namespace quire
