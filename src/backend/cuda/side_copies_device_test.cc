#include <algorithm>
#include <vector>

#include <gtest/gtest.h>

#include "backend/cuda/device_case.h"
#include "backend/cuda/side_copies.h"

namespace quire::cuda {
namespace {

class SideCopiesTest : public DeviceTest {
 protected:
  static constexpr size_t kPage = size_t(4) << 20;

  static void fill(const Buffer& buffer, uint32_t seed) {
    auto* values = buffer.as<uint32_t>();
    for (size_t i = 0; i < buffer.size() / 4; ++i) values[i] = seed + uint32_t(i) * 2654435761u;
  }
  static bool equal(const Buffer& a, const Buffer& b) { return std::ranges::equal(a.bytes(), b.bytes()); }
  static void copy(void* to, const void* from, size_t bytes, const Stream& stream) {
    CUDA_CHECK(cudaMemcpyAsync(to, from, bytes, cudaMemcpyDefault, stream.get()));
  }
};

TEST_F(SideCopiesTest, BringBytesThereAndBack) {
  const Stream main;
  SideCopies aside;
  const DeviceBuffer device(kPage);
  const Buffer from = SideCopies::allocate(kPage), to = SideCopies::allocate(kPage);
  EXPECT_EQ(from.kind(), MemoryKind::pinned);
  fill(from, 1);
  auto* pages = device.as<std::byte>();
  const ByteCopy there[] = {{pages, from.data(), kPage / 2},
                            {pages + kPage / 2, from.data() + kPage / 2, kPage / 2}};
  const uint64_t up = aside.start(there, main.get());
  const ByteCopy back[] = {{to.data(), pages, kPage}};
  const uint64_t down = aside.start(back, main.get());
  aside.wait(down);
  const auto took = aside.seconds(up);
  ASSERT_TRUE(took.has_value()) << "they happen one after the other";
  EXPECT_GT(*took, 0);
  ASSERT_TRUE(aside.seconds(down).has_value());
  EXPECT_EQ(aside.seconds(down), 0) << "it was told";
  EXPECT_TRUE(equal(from, to));
}

TEST_F(SideCopiesTest, ComeAfterWhatWasAskedForBeforeThem) {
  const Stream main;
  SideCopies aside;
  const DeviceBuffer a(kPage), b(kPage);
  const Buffer first = SideCopies::allocate(kPage), to = SideCopies::allocate(kPage);
  for (uint32_t round = 0; round < 30; ++round) {
    fill(first, round);
    copy(a.data(), first.data(), kPage, main);
    for (int i = 0; i < 8; ++i) {
      copy(b.data(), a.data(), kPage, main);
      copy(a.data(), b.data(), kPage, main);
    }
    const ByteCopy one[] = {{to.data(), a.as<std::byte>(), kPage}};
    aside.wait(aside.start(one, main.get()));
    ASSERT_TRUE(equal(first, to)) << "round " << round;
  }
}

TEST_F(SideCopiesTest, AreWaitedForByWhatOverwritesWhereTheyReadIfThatIsSaid) {
  constexpr size_t kPages = 16;
  const Stream main;
  SideCopies aside;
  const DeviceBuffer device(kPages * kPage), other(kPages * kPage);
  const Buffer first = SideCopies::allocate(kPages * kPage), to = SideCopies::allocate(kPages * kPage);
  for (uint32_t round = 0; round < 10; ++round) {
    fill(first, round);
    copy(device.data(), first.data(), kPages * kPage, main);
    std::vector<ByteCopy> out;
    for (size_t i = 0; i < kPages; ++i)
      out.push_back({to.data() + i * kPage, device.as<std::byte>() + i * kPage, kPage});
    const uint64_t mark = aside.start(out, main.get());
    aside.order_after(mark, main.get());
    // Within the device: far faster than what it has to wait for.
    copy(device.data(), other.data(), kPages * kPage, main);
    main.wait();
    ASSERT_TRUE(aside.seconds(mark).has_value()) << "what came after them has happened";
    ASSERT_TRUE(equal(first, to)) << "round " << round;
  }
}

}  // namespace
}  // namespace quire::cuda
