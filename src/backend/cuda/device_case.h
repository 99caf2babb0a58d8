#pragma once

#include <gtest/gtest.h>

#include "backend/cuda/device_memory.h"

// Of tests only.

namespace quire::cuda {

// A test that runs kernels: skipped where there is nothing to run them on.
class DeviceTest : public ::testing::Test {
 protected:
  void SetUp() override {
    if (!has_device()) GTEST_SKIP() << "this machine has no CUDA device";
  }
};

}  // namespace quire::cuda
