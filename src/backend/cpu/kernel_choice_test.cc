#include "backend/cpu/kernel_choice.h"

#include <cstdlib>
#include <sstream>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/error.h"

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

}  // namespace
}  // namespace quire
