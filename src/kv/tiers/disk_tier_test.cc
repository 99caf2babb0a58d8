#include "kv/tiers/disk_tier.h"

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <map>
#include <mutex>

#include <sys/wait.h>

#include "base/error.h"
#include "kv/tiers/disk_tier_case.h"

namespace quire {
namespace {

TEST_F(DiskTierTest, GivesBackTheBytesOfEveryPageInEveryGroup) {
  layout_ = layout(6);
  ASSERT_EQ(layout_.groups.size(), 2u);
  const auto tier = make();
  std::map<std::pair<Tokens, uint32_t>, std::vector<std::byte>> pages;
  for (uint32_t n = kTokens; n <= 40; n += kTokens) {
    for (uint32_t g = 0; g < 2; ++g) {
      const auto& page = pages[{counted(n), g}] = random_page(g);
      EXPECT_EQ(store(*tier, counted(n), page, g), DiskTier::Stored::queued);
    }
  }
  for (const auto& [key, page] : pages) EXPECT_EQ(load(*tier, key.first, key.second), page);
  const DiskTier::Stats stats = tier->stats();
  EXPECT_EQ(stats.written_pages, 20u);
  EXPECT_EQ(stats.read_pages, 20u);
  EXPECT_EQ(stats.written_bytes, 10 * (page_bytes(0) + page_bytes(1)));
  EXPECT_EQ(stats.read_bytes, stats.written_bytes);
  tier->check_invariants();
}

TEST_F(DiskTierTest, FindsAPageByAllTokensBeforeItNotByItsOwn) {
  const auto tier = make();
  const auto page = random_page();
  store(*tier, counted(8), page);
  Tokens other = counted(8);
  other[1] = 99;
  EXPECT_FALSE(load(*tier, other).has_value());
  EXPECT_FALSE(load(*tier, counted(4)).has_value());
  EXPECT_FALSE(load(*tier, counted(12)).has_value());
  EXPECT_FALSE(load(*tier, counted(4, 4)).has_value());
  EXPECT_EQ(load(*tier, counted(8)), page);
  EXPECT_EQ(tier->pages_along(counted(9)), (std::vector<std::vector<bool>>{{false}, {true}}));
}

TEST_F(DiskTierTest, WhatWasUsedLongestAgoMakesRoomAndTheFileStaysWithinItsBound) {
  off_t end = 0;
  const DiskIo io{.write =
                      [&](int file, const void* data, size_t bytes, off_t at) {
                        end = std::max(end, at + off_t(bytes));
                        return ::pwrite(file, data, bytes, at);
                      },
                  .read = {}};
  {
    const auto tier = make(3, io);
    for (uint32_t i = 0; i < 3; ++i) store(*tier, counted(4, 10 * i), random_page());
    EXPECT_EQ(store(*tier, counted(4, 0), random_page()), DiskTier::Stored::already_there);  // and used
    const auto newest = random_page();
    store(*tier, counted(4, 90), newest);
    EXPECT_TRUE(load(*tier, counted(4, 0)).has_value());
    EXPECT_FALSE(load(*tier, counted(4, 10)).has_value());
    EXPECT_TRUE(load(*tier, counted(4, 20)).has_value());
    EXPECT_EQ(load(*tier, counted(4, 90)), newest);
    EXPECT_EQ(tier->stats().pages, 3u);
    EXPECT_EQ(tier->stats().replaced_pages, 1u);
    tier->check_invariants();
  }
  EXPECT_EQ(size_t(end), 3 * page_bytes());
}

TEST_F(DiskTierTest, OfOnePrefixTheDeepestPageGoesFirst) {
  const auto tier = make(3);
  for (uint32_t n : {4, 8, 12}) store(*tier, counted(n), random_page());
  tier->touch_along(counted(14));
  store(*tier, counted(4, 50), random_page());
  EXPECT_TRUE(load(*tier, counted(4)).has_value());
  EXPECT_TRUE(load(*tier, counted(8)).has_value());
  EXPECT_FALSE(load(*tier, counted(12)).has_value());
}

TEST_F(DiskTierTest, AChangedByteIsNoticedAndThePageForgotten) {
  int descriptor = -1;
  const DiskIo io{.write =
                      [&](int file, const void* data, size_t bytes, off_t at) {
                        descriptor = file;
                        return ::pwrite(file, data, bytes, at);
                      },
                  .read = {}};
  const auto tier = make(64, io);
  const uint32_t pages = 40;
  for (uint32_t i = 0; i < pages; ++i) store(*tier, counted(4, 10 * i), random_page());
  wait_until_done(*tier);
  for (uint32_t i = 0; i < pages; ++i) {
    char byte = 0;
    const off_t at = off_t(i * page_bytes() + random_() % page_bytes());
    ASSERT_EQ(::pread(descriptor, &byte, 1, at), 1);
    byte = char(byte ^ (1 << random_() % 8));
    ASSERT_EQ(::pwrite(descriptor, &byte, 1, at), 1);
    EXPECT_FALSE(load(*tier, counted(4, 10 * i)).has_value());
  }
  EXPECT_EQ(tier->stats().failed_reads, pages);
  EXPECT_EQ(tier->stats().pages, 0u);
  const auto anew = random_page();
  EXPECT_EQ(store(*tier, counted(4), anew), DiskTier::Stored::queued);
  EXPECT_EQ(load(*tier, counted(4)), anew);
  tier->check_invariants();
}

TEST_F(DiskTierTest, AFileThatBecameShorterLosesOnlyWhatWasBehindItsEnd) {
  int descriptor = -1;
  const DiskIo io{.write =
                      [&](int file, const void* data, size_t bytes, off_t at) {
                        descriptor = file;
                        return ::pwrite(file, data, bytes, at);
                      },
                  .read = {}};
  const auto tier = make(4, io);
  const auto first = random_page();
  store(*tier, counted(4), first);
  store(*tier, counted(4, 10), random_page());
  wait_until_done(*tier);
  ASSERT_EQ(::ftruncate(descriptor, off_t(2 * page_bytes() - 1)), 0);
  EXPECT_EQ(load(*tier, counted(4)), first);
  EXPECT_FALSE(load(*tier, counted(4, 10)).has_value());
  EXPECT_EQ(tier->stats().failed_reads, 1u);
  tier->check_invariants();
}

TEST_F(DiskTierTest, ADiskThatIsFullOrFailsLosesPagesAndNothingElse) {
  uint32_t writes = 0, reads = 0;
  const DiskIo io{.write = [&](int file, const void* data, size_t bytes, off_t at) -> ssize_t {
                    switch (writes++ % 4) {
                      case 0:
                        errno = ENOSPC;
                        return -1;
                      case 1:
                        return 0;
                      case 2:
                        errno = EINTR;
                        return -1;
                      default:
                        return ::pwrite(file, data, std::min<size_t>(bytes, 100000), at);
                    }
                  },
                  .read = [&](int file, void* data, size_t bytes, off_t at) -> ssize_t {
                    errno = EIO;
                    return reads++ % 2 == 0 ? ::pread(file, data, bytes, at) : -1;
                  }};
  const auto tier = make(16, io);
  std::vector<std::vector<std::byte>> pages;
  for (uint32_t i = 0; i < 6; ++i) {
    pages.push_back(random_page());
    store(*tier, counted(4, 10 * i), pages.back());
  }
  wait_until_done(*tier);
  EXPECT_EQ(tier->stats().failed_writes, 4u);
  EXPECT_EQ(tier->stats().written_pages, 2u);
  EXPECT_FALSE(load(*tier, counted(4, 0)).has_value());
  EXPECT_EQ(load(*tier, counted(4, 20)), pages[2]);
  EXPECT_FALSE(load(*tier, counted(4, 50)).has_value());
  EXPECT_FALSE(tier->read(0, counted(4, 50)).has_value()) << "it is forgotten";
  EXPECT_EQ(tier->stats().failed_reads, 1u);
  tier->check_invariants();
}

TEST_F(DiskTierTest, APageIsDroppedRatherThanWaitedForWhenTheDiskIsTooSlow) {
  std::mutex busy;
  const DiskIo io{.write =
                      [&](int file, const void* data, size_t bytes, off_t at) {
                        const std::lock_guard lock(busy);
                        return ::pwrite(file, data, bytes, at);
                      },
                  .read = {}};
  const auto tier = make(16, io, 3 * page_bytes());
  busy.lock();
  for (uint32_t i = 0; i < 3; ++i)
    EXPECT_EQ(store(*tier, counted(4, 10 * i), random_page()), DiskTier::Stored::queued);
  const DiskTier::Place dropped = tier->store(0, counted(4, 90));
  EXPECT_EQ(dropped.stored, DiskTier::Stored::dropped);
  EXPECT_EQ(dropped.bytes, nullptr);
  busy.unlock();
  wait_until_done(*tier);
  EXPECT_EQ(tier->stats().dropped_pages, 1u);
  EXPECT_EQ(tier->stats().written_pages, 3u);
  EXPECT_FALSE(tier->read(0, counted(4, 90)).has_value());
  tier->check_invariants();
}

TEST_F(DiskTierTest, APageThatIsLargerThanTheQueueIsWrittenAndASecondOneIsDroppedMeanwhile) {
  std::mutex busy;
  const DiskIo io{.write =
                      [&](int file, const void* data, size_t bytes, off_t at) {
                        const std::lock_guard lock(busy);
                        return ::pwrite(file, data, bytes, at);
                      },
                  .read = {}};
  const auto tier = make(16, io, page_bytes() - 1);
  busy.lock();
  const auto page = random_page();
  EXPECT_EQ(store(*tier, counted(4), page), DiskTier::Stored::queued);
  EXPECT_EQ(tier->store(0, counted(4, 90)).stored, DiskTier::Stored::dropped);
  busy.unlock();
  wait_until_done(*tier);
  EXPECT_EQ(load(*tier, counted(4)), page);
  EXPECT_EQ(store(*tier, counted(4, 90), page), DiskTier::Stored::queued);
  wait_until_done(*tier);
  EXPECT_EQ(tier->stats().written_pages, 2u);
  tier->check_invariants();
}

TEST_F(DiskTierTest, ASlotThatIsTakenWhileItsPageIsStillToBeReadGivesTheOldPageOrNone) {
  for (uint32_t round = 0; round < 50; ++round) {
    const auto tier = make(1);
    const auto first = random_page(), second = random_page();
    store(*tier, counted(4), first);
    const auto ticket = tier->read(0, counted(4)).value();
    store(*tier, counted(4, 10), second);
    EXPECT_EQ(load_next(*tier, ticket), first);
    EXPECT_EQ(load(*tier, counted(4, 10)), second);
    tier->check_invariants();
  }
}

TEST_F(DiskTierTest, AFolderThatIsNotThereOrASizeWithoutRoomForAPageIsAnError) {
  EXPECT_THROW(make(0), Error);
  EXPECT_THROW(DiskTier(layout_, {.folder = folder_ + "/none", .bytes = 1 << 20}), Error);
}

TEST_F(DiskTierTest, AProgramThatIsKilledLeavesNoFile) {
  int ready[2];
  ASSERT_EQ(::pipe(ready), 0);
  const pid_t child = ::fork();
  ASSERT_GE(child, 0);
  if (child == 0) {
    const auto tier = make();
    store(*tier, counted(4), random_page());
    wait_until_done(*tier);
    [[maybe_unused]] const ssize_t said = ::write(ready[1], "x", 1);
    ::pause();
  }
  char byte = 0;
  ASSERT_EQ(::read(ready[0], &byte, 1), 1);
  ASSERT_EQ(::kill(child, SIGKILL), 0);
  int status = 0;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  ::close(ready[0]);
  ::close(ready[1]);
  EXPECT_TRUE(std::filesystem::is_empty(folder_));
}
}  // namespace
}  // namespace quire
