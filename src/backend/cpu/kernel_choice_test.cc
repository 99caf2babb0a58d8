#include "backend/cpu/kernel_choice.h"

#include <string_view>

#include <gtest/gtest.h>

#if defined(__aarch64__)
#include "backend/cpu/bfmmla/bfmmla_kernels.h"
#elif defined(__x86_64__)
#include "backend/cpu/amx/tile_permission.h"
#endif

namespace quire {
namespace {

bool multiplies_pages_of_bf16([[maybe_unused]] const CpuKernels& kernels) {
#if defined(__aarch64__)
  return kernels.attend == attend_bfmmla;
#elif defined(__x86_64__)
  return std::string_view(kernels.name) == "amx" && may_use_bf16_tiles();
#else
  return false;
#endif
}

TEST(KernelChoice, PagesAreOfBf16WhereAttentionMultipliesThemAndElseOfF16) {
  for (const CpuKernels& kernels : present_kernels())
    EXPECT_EQ(kernels.pages, multiplies_pages_of_bf16(kernels) ? KvFormat::bf16 : KvFormat::f16)
        << kernels.name;
  EXPECT_EQ(exact_kernels().pages, KvFormat::f16);
}

}  // namespace
}  // namespace quire
