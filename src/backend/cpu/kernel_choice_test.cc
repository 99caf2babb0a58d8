#include "backend/cpu/kernel_choice.h"

#include <cstdlib>
#include <sstream>
#include <string_view>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/error.h"
#if defined(__aarch64__)
#include "backend/cpu/bfmmla/bfmmla_kernels.h"
#elif defined(__x86_64__)
#include "backend/cpu/amx/tile_permission.h"
#endif

namespace quire {
namespace {

// Tests of kernels run over the sets that are present: where they are run for the sake of one, it must be.
TEST(KernelChoice, HasTheSetsThatAreExpectedOfThisMachine) {
  const char* expected = std::getenv("QUIRE_EXPECTED_KERNELS");
  std::istringstream names(expected == nullptr ? "scalar" : expected);
  for (std::string name; names >> name;) {
    EXPECT_THAT(kernel_names(), testing::Contains(name));
    if (name == "i8mm") {
      EXPECT_NE(kernels_named("i8mm").attend, kernels_named("neon_dot").attend) << "bfmmla is not there";
    }
  }
}

TEST(KernelChoice, TakesTheLastSetUnlessItIsAskedForAnother) {
  EXPECT_STREQ(kernels_named("auto").name, present_kernels().back().name);
  EXPECT_STREQ(kernels_named("scalar").name, "scalar");
  EXPECT_THROW(kernels_named("abacus"), Error);
}

bool multiplies_pages_of_bf16([[maybe_unused]] const CpuKernels& kernels) {
#if defined(__aarch64__)
  return kernels.attend == attend_bfmmla;
#elif defined(__x86_64__)
  return std::string_view(kernels.name).starts_with("amx") && may_use_bf16_tiles();
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
