#include "base/memory_reserve.h"

#include <memory>
#include <new>

#include <gtest/gtest.h>

namespace quire {
namespace {

TEST(MemoryReserve, IsGivenBackOnceWhenMemoryRunsOutAndKeptAgain) {
  for (int round = 0; round < 3; ++round) {
    keep_memory_reserve();
    const std::new_handler handler = std::get_new_handler();
    ASSERT_NE(handler, nullptr);
    EXPECT_NO_THROW(handler());               // something was given back: try again
    EXPECT_THROW(handler(), std::bad_alloc);  // there is no more
  }
  keep_memory_reserve();
  EXPECT_THROW(std::make_unique<char[]>(size_t(1) << 60), std::bad_alloc);
}

}  // namespace
}  // namespace quire
