#include <cstring>
#include <vector>

#include <gtest/gtest.h>

#include "backend/cuda/device_case.h"
#include "backend/cuda/weight_copies.h"

namespace quire::cuda {
namespace {

using WeightCopiesOnDevice = DeviceTest;

std::vector<uint32_t> numbers(size_t count) {
  std::vector<uint32_t> values(count);
  for (size_t i = 0; i < count; ++i) values[i] = uint32_t(i * 2'654'435'761u);
  return values;
}

TEST_F(WeightCopiesOnDevice, BringsMoreThanAllItsBlocksHold) {
  const std::vector<uint32_t> values = numbers(6 * WeightCopies::kBlockBytes / sizeof(uint32_t) + 12'345);
  const DeviceBuffer buffer(values.size() * sizeof(uint32_t));
  const Stream stream;
  WeightCopies copies;
  copies.copy(buffer.data(), values.data(), buffer.bytes(), stream.get());
  stream.wait();
  EXPECT_EQ(buffer.download<uint32_t>(), values);
}

TEST_F(WeightCopiesOnDevice, LetsTheSourceGoWhenItReturns) {
  const std::vector<uint32_t> values = numbers(3'000'001);
  std::vector<uint32_t> source = values;
  const DeviceBuffer buffer(values.size() * sizeof(uint32_t));
  const Stream stream;
  WeightCopies copies;
  copies.copy(buffer.data(), source.data(), buffer.bytes(), stream.get());
  std::memset(source.data(), 0, buffer.bytes());
  stream.wait();
  EXPECT_EQ(buffer.download<uint32_t>(), values);
}

TEST_F(WeightCopiesOnDevice, AsksForWholeUnitsOfWhatIsMade) {
  constexpr size_t kUnit = 12'004;
  const std::vector<uint32_t> values = numbers(kUnit / sizeof(uint32_t) * 4'321);
  const DeviceBuffer buffer(values.size() * sizeof(uint32_t));
  const Stream stream;
  WeightCopies copies;
  copies.copy_made(
      buffer.data(), buffer.bytes(), kUnit,
      [&](std::byte* at, size_t begin, size_t end) {
        CHECK(begin % kUnit == 0 && end % kUnit == 0);
        std::memcpy(at, reinterpret_cast<const std::byte*>(values.data()) + begin, end - begin);
      },
      stream.get());
  stream.wait();
  EXPECT_EQ(buffer.download<uint32_t>(), values);
}

}  // namespace
}  // namespace quire::cuda
