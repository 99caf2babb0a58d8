#include "backend/cuda/device_failure.h"

#include <gtest/gtest.h>

namespace quire::cuda {
namespace {

TEST(DeviceFailure, ErrorsThatEveryLaterCallWouldRepeatMeanThatTheDeviceIsLost) {
  for (const int code : {214, 220, 226, 700, 702, 709, 710, 714, 715, 716, 717, 718, 719, 810, 911, 999})
    EXPECT_EQ(failure_of(code), Failure::lost) << code;
}

TEST(DeviceFailure, MemoryThatIsMissingAndWrongCallsConcernWhatWasAskedForAlone) {
  EXPECT_EQ(failure_of(2), Failure::memory);
  for (const int code : {1, 9, 98, 400, 701, 720, 900, 910})
    EXPECT_EQ(failure_of(code), Failure::of_call) << code;
}

TEST(DeviceFailure, DriversAndDevicesThatCannotBeUsedAreNotLost) {
  for (const int code : {3, 35, 36, 46, 100, 209, 222, 803})
    EXPECT_EQ(failure_of(code), Failure::unusable) << code;
}

TEST(DeviceFailure, ALostDeviceIsToldWithItsReasonItsPlaceAndWhatToDo) {
  const std::string ecc =
      sentence_for({214, "uncorrectable ECC error encountered", "launch", "add_norm.cu:104"});
  EXPECT_NE(ecc.find("uncorrectable ECC error"), std::string::npos) << ecc;
  EXPECT_NE(ecc.find("add_norm.cu:104"), std::string::npos) << ecc;
  EXPECT_NE(ecc.find("--gpu-reset"), std::string::npos) << ecc;
  const std::string launch = sentence_for({719, "unspecified launch failure", "launch", "x.cu:1"});
  EXPECT_NE(launch.find("Xid"), std::string::npos) << launch;
}

TEST(DeviceFailure, MissingMemoryIsToldWithWhatThereIsAndWhoMayHaveIt) {
  const std::string told = sentence_for(MissingMemory{3'000'000'000, 1'000'000'000, 80'000'000'000});
  EXPECT_NE(told.find("3.00 GB more: 1.00 GB of 80.00 GB are free"), std::string::npos) << told;
  EXPECT_NE(told.find("nvidia-smi"), std::string::npos) << told;
  const std::string unknown = sentence_for(MissingMemory{3'000'000'000, 0, 0});
  EXPECT_EQ(unknown.find("are free"), std::string::npos) << unknown;
}

TEST(DeviceFailure, NoSentenceHasTheCallsArguments) {
  for (const int code : {1, 2, 35, 719}) {
    const std::string told = sentence_for({code, "words", "cudaMalloc(&data_, bytes)", "x.cc:1"});
    EXPECT_EQ(told.find("data_"), std::string::npos) << told;
  }
}

TEST(DeviceFailure, ADriverThatIsTooOldIsToldWithBothVersions) {
  EXPECT_EQ(sentence_for_driver(0, 13000), "there is no NVIDIA driver");
  EXPECT_EQ(
      sentence_for_driver(12040, 13000),
      "the NVIDIA driver is for CUDA 12.4, and this program needs one for 13.0; install a newer driver");
}

TEST(DeviceFailure, ADeviceThatAnotherProcessHasForItselfIsToldAsSuch) {
  EXPECT_NE(sentence_for({46, "busy", "cudaSetDevice", "x.cc:1"}).find("another process"), std::string::npos);
}

}  // namespace
}  // namespace quire::cuda
