#include <numeric>
#include <vector>

#include <gtest/gtest.h>

#include "backend/cuda/device_case.h"
#include "base/error.h"

namespace quire::cuda {
namespace {

using DeviceMemory = DeviceTest;

TEST_F(DeviceMemory, GivesBackTheBytesItWasGiven) {
  std::vector<int> values(10'000);
  std::iota(values.begin(), values.end(), -17);
  const DeviceBuffer buffer = DeviceBuffer::of(values);
  EXPECT_EQ(buffer.download<int>(), values);
}

TEST_F(DeviceMemory, SaysInASentenceThatThereIsNoMemoryLeft) {
  try {
    DeviceBuffer buffer(size_t{1} << 60);
    FAIL() << "an exabyte was found";
  } catch (const Error& error) {
    EXPECT_NE(std::string(error.what()).find("has no room for"), std::string::npos) << error.what();
  }
  EXPECT_EQ(cudaGetLastError(), cudaSuccess);  // the next call does not see it again
}

TEST(DeviceMemoryWithoutADevice, IsAnErrorInASentence) {
  if (has_device()) {
    EXPECT_GE(compute_capability(), 50);
    return;
  }
  try {
    compute_capability();
    FAIL() << "there is no device";
  } catch (const Error& error) {
    EXPECT_NE(std::string(error.what()).find("driver"), std::string::npos) << error.what();
  }
}

}  // namespace
}  // namespace quire::cuda
