// --gpu-layers and --cpu-experts where there is no GPU: refused, before anything is loaded.
#include <gmock/gmock.h>

#include "cli_fixture.h"

namespace quire {
namespace {

using testing::HasSubstr;

class SplitCommand : public Cli {};

TEST_F(SplitCommand, ACpuHasNothingToDivideAModelWith) {
  for (const char* option : {"--gpu-layers 3", "--gpu-layers 0"}) {
    const Outcome refused = quire(std::string("run --device cpu -n 1 ") + option + " hello");
    EXPECT_EQ(refused.code, 2) << option;
    EXPECT_THAT(refused.err, HasSubstr("divide a model between a GPU and the CPU; the device is cpu"));
  }
  EXPECT_EQ(quire("run --device cpu -n 1 --gpu-layers auto hello").code, 0);
}

TEST_F(SplitCommand, WhatIsNoNumberOfLayersIsWrongUsage) {
  EXPECT_EQ(quire("run --device cpu --gpu-layers many hello").code, 2);
  EXPECT_EQ(quire("run --device cpu --gpu-layers -1 hello").code, 2);
}

TEST_F(SplitCommand, AModelWithoutExpertsHasNoneToLeaveToTheCpu) {
  const Outcome refused = quire("run --device cpu --cpu-experts hello");
  EXPECT_EQ(refused.code, 1);
  EXPECT_THAT(refused.err, HasSubstr("no layer of this model has experts"));
}

}  // namespace
}  // namespace quire
