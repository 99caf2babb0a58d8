#ifdef __aarch64__

#include <cstdint>

#include <arm_neon.h>
#include <asm/hwcap.h>
#include <sys/auxv.h>

#include "backend/cpu/peak_kernels.h"

namespace quire {
namespace {

constexpr size_t kVectorBytes = 16;
constexpr size_t kSide = 4;  // of the tile: 16 sums and 8 operands in 32 registers
constexpr double kProductsPerSweep = double(PeakPanels::kBytes / (kSide * kVectorBytes)) * kSide * kSide;

#ifdef __clang__
#define QUIRE_DOTPROD "dotprod"
#define QUIRE_I8MM "i8mm"
#define QUIRE_BF16 "bf16"
#else
#define QUIRE_DOTPROD "arch=armv8.2-a+dotprod"
#define QUIRE_I8MM "arch=armv8.2-a+i8mm"
#define QUIRE_BF16 "arch=armv8.2-a+bf16"
#endif

// The products are written as assembly because Clang 14 has their intrinsics only where the whole file is
// compiled for them; the function is a macro because a template cannot choose its target.
#define QUIRE_PEAK(function, feature, instruction, Sum, add_all)                                         \
  __attribute__((target(feature))) double function(const PeakPanels& panels, size_t sweeps) {            \
    const auto* left_panel = reinterpret_cast<const int8_t*>(panels.left);                               \
    const auto* right_panel = reinterpret_cast<const int8_t*>(panels.right);                             \
    Sum sums[kSide][kSide] = {};                                                                         \
    for (size_t sweep = 0; sweep < sweeps; ++sweep) {                                                    \
      for (size_t k = 0; k < PeakPanels::kBytes; k += kSide * kVectorBytes) {                            \
        int8x16_t left[kSide], right[kSide];                                                             \
        _Pragma("GCC unroll 4") for (size_t i = 0; i < kSide; ++i) {                                     \
          left[i] = vld1q_s8(left_panel + k + i * kVectorBytes);                                         \
          right[i] = vld1q_s8(right_panel + k + i * kVectorBytes);                                       \
        }                                                                                                \
        _Pragma("GCC unroll 4") for (size_t i = 0; i < kSide; ++i) {                                     \
          _Pragma("GCC unroll 4") for (size_t j = 0; j < kSide; ++j) {                                   \
            Sum sum = sums[i][j];                                                                        \
            asm(instruction : "+w"(sum) : "w"(left[i]), "w"(right[j]));                                  \
            sums[i][j] = sum; /* GCC keeps the operands of assembly in memory if they are of an array */ \
          }                                                                                              \
        }                                                                                                \
      }                                                                                                  \
    }                                                                                                    \
    double total = 0;                                                                                    \
    for (auto& row : sums) {                                                                             \
      for (Sum sum : row) total += double(add_all(sum));                                                 \
    }                                                                                                    \
    return total;                                                                                        \
  }
QUIRE_PEAK(run_sdot, QUIRE_DOTPROD, "sdot %0.4s, %1.16b, %2.16b", int32x4_t, vaddlvq_s32)
QUIRE_PEAK(run_smmla, QUIRE_I8MM, "smmla %0.4s, %1.16b, %2.16b", int32x4_t, vaddlvq_s32)
QUIRE_PEAK(run_bfmmla, QUIRE_BF16, "bfmmla %0.4s, %1.8h, %2.8h", float32x4_t, vaddvq_f32)

double run_f32(const PeakPanels& panels, size_t sweeps) {
  constexpr size_t kLanes = kVectorBytes / sizeof(float);
  float32x4_t sums[kSide][kSide] = {};
  for (size_t sweep = 0; sweep < sweeps; ++sweep) {
    for (size_t k = 0; k < PeakPanels::kBytes / sizeof(float); k += kSide * kLanes) {
      float32x4_t left[kSide], right[kSide];
#pragma GCC unroll 4
      for (size_t i = 0; i < kSide; ++i) {
        left[i] = vld1q_f32(reinterpret_cast<const float*>(panels.left) + k + i * kLanes);
        right[i] = vld1q_f32(reinterpret_cast<const float*>(panels.right) + k + i * kLanes);
      }
#pragma GCC unroll 4
      for (size_t i = 0; i < kSide; ++i) {
#pragma GCC unroll 4
        for (size_t j = 0; j < kSide; ++j) sums[i][j] = vfmaq_f32(sums[i][j], left[i], right[j]);
      }
    }
  }
  double total = 0;
#pragma GCC unroll 4
  for (size_t i = 0; i < kSide; ++i) {
#pragma GCC unroll 4
    for (size_t j = 0; j < kSide; ++j) total += double(vaddvq_f32(sums[i][j]));
  }
  return total;
}

}  // namespace

std::vector<PeakKernel> int8_peak_kernels() {
  std::vector<PeakKernel> kernels;
  // A product is 16 multiply-adds in sdot, 2 x 2 x 8 in smmla.
  if (getauxval(AT_HWCAP2) & HWCAP2_I8MM) {
    kernels.push_back({"smmla", 2 * 32 * kProductsPerSweep, run_smmla});
  }
  if (getauxval(AT_HWCAP) & HWCAP_ASIMDDP) {
    kernels.push_back({"sdot", 2 * 16 * kProductsPerSweep, run_sdot});
  }
  if (kernels.empty()) kernels.push_back(portable::int8_peak_kernel());
  return kernels;
}

std::vector<PeakKernel> f32_peak_kernels() {
  return {{"fmla", 2 * 4 * kProductsPerSweep, run_f32}};
}

std::vector<PeakKernel> bf16_peak_kernels() {
  if ((getauxval(AT_HWCAP2) & HWCAP2_BF16) == 0) return {};
  return {{"bfmmla", 2 * 16 * kProductsPerSweep, run_bfmmla}};  // 2 x 2 x 4 in a product
}

}  // namespace quire

#endif
