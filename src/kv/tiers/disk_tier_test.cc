#include "kv/tiers/disk_tier.h"

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <cstring>
#include <filesystem>
#include <map>
#include <mutex>
#include <numeric>
#include <random>

#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/error.h"
#include "kv/host_kv.h"

namespace quire {
namespace {

namespace fs = std::filesystem;
using Tokens = std::vector<TokenId>;
constexpr uint32_t kTokens = 4;

class DiskTierTest : public testing::Test {
 protected:
  DiskTierTest() { fs::create_directories(folder_); }
  ~DiskTierTest() override {
    EXPECT_TRUE(fs::is_empty(folder_)) << "the file has no name";
    fs::remove_all(folder_);
  }

  static KvLayout layout(uint32_t window = 0) {
    const KvLayerShape full{.kv_heads = 2, .key_dim = 4, .value_dim = 2};
    KvLayerShape other = full;
    other.window = window;
    other.kv_heads = window > 0 ? 1 : 2;
    return make_kv_layout(std::vector{full, other}, kTokens);
  }
  size_t page_bytes(uint32_t group = 0) const { return layout_.groups[group].page_bytes; }
  std::unique_ptr<DiskTier> make(size_t pages = 16, DiskIo io = {}, size_t queue_bytes = 1 << 20) {
    size_t bytes = 0;
    for (const KvGroupLayout& group : layout_.groups) bytes += group.page_bytes;
    return std::make_unique<DiskTier>(
        layout_, DiskTierOptions{.folder = folder_, .bytes = pages * bytes, .queue_bytes = queue_bytes},
        std::move(io));
  }
  static Tokens counted(uint32_t n, uint32_t from = 0) {
    Tokens tokens(n);
    std::iota(tokens.begin(), tokens.end(), from);
    return tokens;
  }
  std::vector<std::byte> random_page(uint32_t group = 0) {
    std::vector<std::byte> page(page_bytes(group));
    for (std::byte& b : page) b = std::byte(random_());
    return page;
  }
  static DiskTier::Stored store(DiskTier& tier, const Tokens& prefix, const std::vector<std::byte>& page,
                                uint32_t group = 0) {
    const DiskTier::Place place = tier.store(group, prefix);
    if (place.stored != DiskTier::Stored::queued) return place.stored;
    std::memcpy(place.bytes, page.data(), page.size());
    tier.filled(place.ticket);
    return place.stored;
  }
  static void wait_until_done(DiskTier& tier) {
    while (tier.stats().queued_bytes > 0) tier.wait(std::chrono::milliseconds(10));
  }
  // Nothing: it is not there, or could not be read.
  std::optional<std::vector<std::byte>> load(DiskTier& tier, const SaltedTokens& prefix, uint32_t group = 0) {
    const auto ticket = tier.read(group, prefix);
    if (!ticket) return std::nullopt;
    return load_next(tier, *ticket, group);
  }
  std::optional<std::vector<std::byte>> load_next(DiskTier& tier, DiskTier::Ticket ticket,
                                                  uint32_t group = 0) {
    while (true) {
      for (DiskTier::Arrival& arrival : tier.take_arrivals()) {
        EXPECT_EQ(arrival.ticket, ticket);
        if (!arrival.bytes) return std::nullopt;
        return std::vector(arrival.bytes.get(), arrival.bytes.get() + page_bytes(group));
      }
      tier.wait(std::chrono::milliseconds(10));
    }
  }

  KvLayout layout_ = layout();
  std::mt19937 random_{5};
  std::string folder_ = testing::TempDir() + "/quire_disk_tier_" + std::to_string(::getpid());
};

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
  EXPECT_TRUE(fs::is_empty(folder_));
}

// ---- as the cache uses it ----------------------------------------------------------------------------------------

class CacheWithDisk : public DiskTierTest {
 protected:
  void make_cache(uint32_t window, uint32_t pages) {
    layout_ = layout(window);
    tier_ = make(64);
    const std::vector<uint32_t> counts(layout_.groups.size(), pages);
    kv_ = std::make_unique<HostKv>(layout_, counts);
    kv_->evict_to(*tier_);
  }
  // One sequence from its beginning to its end: each page gets bytes that only its tokens up to its end have.
  void compute(const Tokens& tokens, CacheSalt salt = {}) {
    PageTable table = kv_->make_table({}, salt);
    const uint32_t found = kv_->attach(table, tokens).tokens;
    ASSERT_TRUE(kv_->reserve(table, uint32_t(tokens.size())));
    KvTables flat;
    const PageTable* tables[] = {&table};
    const auto views = kv_->view(tables, flat);
    for (uint32_t g = 0; g < views.size(); ++g) {
      for (uint32_t i = 0; i < table.pages(g).size(); ++i) {
        if (!table.pages(g)[i]) continue;
        const auto expected = bytes_for(tokens, g, i, salt);
        if (i < found / kTokens) {
          EXPECT_EQ(std::memcmp(views[g].page(0, i), expected.data(), expected.size()), 0) << "page " << i;
        } else {
          std::memcpy(views[g].page(0, i), expected.data(), expected.size());
        }
      }
    }
    const uint32_t n = uint32_t(tokens.size());
    kv_->publish(table, tokens, n);
    kv_->release_behind_window(table, n);
    kv_->release(table, tokens, n, KvCache::Reason::finished);
    kv_->settle_moves();
  }
  // Of other salts others, which of a model they would not be.
  std::vector<std::byte> bytes_for(const Tokens& tokens, uint32_t group, uint32_t index,
                                   CacheSalt salt) const {
    const size_t end = std::min<size_t>(tokens.size(), size_t(index + 1) * kTokens);
    std::seed_seq seed(tokens.begin(), tokens.begin() + ptrdiff_t(end));
    std::mt19937 random(seed);
    std::vector<std::byte> bytes(page_bytes(group));
    for (std::byte& b : bytes) b = std::byte(random() + group + 13 * salt.key);
    return bytes;
  }
  static std::shared_ptr<const std::byte[]> shared_copy(const std::vector<std::byte>& bytes) {
    auto copy = std::make_shared<std::byte[]>(bytes.size());
    std::ranges::copy(bytes, copy.get());
    return copy;
  }
  // Everything that the disk has of these tokens.
  void bring_back(const Tokens& tokens, CacheSalt salt = {}) {
    kv_->settle_moves();
    const TierMatch match = kv_->lookup_on_disk({tokens, salt});
    const uint64_t use = kv_->touch({tokens, salt});
    for (const TierMatch::Page& page : match.pages) {
      const Tokens prefix(tokens.begin(), tokens.begin() + ptrdiff_t((page.node + 1) * kTokens));
      const auto bytes = load(*tier_, {prefix, salt}, page.page);
      ASSERT_TRUE(bytes.has_value());
      EXPECT_EQ(*bytes, bytes_for(tokens, page.page, page.node, salt));
      if (!kv_->bring_back(page.page, {prefix, salt}, shared_copy(*bytes), use)) return;
      kv_->settle_moves();  // what it evicted is written before anything else is read
    }
  }

  std::unique_ptr<DiskTier> tier_;
  std::unique_ptr<HostKv> kv_;
};

TEST_F(CacheWithDisk, WhatWasEvictedComesBackAndIsFound) {
  make_cache(0, 8);
  compute(counted(24));        // 6 pages
  compute(counted(24, 1000));  // of which 4 have to go
  const PrefixMatch before = kv_->lookup(counted(24));
  EXPECT_EQ(before.tokens, 8u);
  EXPECT_EQ(before.miss.why, PrefixMiss::Why::evicted);
  EXPECT_EQ(kv_->events().count(KvEventKind::stored), 4u);
  const TierMatch match = kv_->lookup_on_disk(counted(24));
  EXPECT_EQ(match.memory_tokens, 8u);
  EXPECT_EQ(match.tokens, 20u) << "the last token is always computed, and its page was not full of others";
  EXPECT_EQ(match.pages.size(), 3u);
  EXPECT_EQ(match.bytes, 3 * page_bytes());
  bring_back(counted(24));
  EXPECT_EQ(kv_->lookup(counted(24)).tokens, 20u);
  EXPECT_EQ(kv_->events().count(KvEventKind::loaded), 3u);
  EXPECT_EQ(kv_->stats().held_pages, 0u);
  compute(counted(24));
  kv_->check_invariants();
  tier_->check_invariants();
}

TEST_F(CacheWithDisk, ComingBackEvictsOnlyWhatIsOlderThanItself) {
  make_cache(0, 4);
  compute(counted(16));
  compute(counted(16, 1000));
  PageTable held = kv_->pin(counted(8, 1000), SequenceId{9});
  bring_back(counted(16));  // two pages of room; the others are held
  EXPECT_EQ(kv_->lookup(counted(16)).tokens, 8u);
  EXPECT_EQ(kv_->lookup(counted(16, 1000)).tokens, 8u);
  kv_->release(held, {}, 0, KvCache::Reason::forgotten);
  kv_->check_invariants();
}

TEST_F(CacheWithDisk, OfWindowLayersOnlyThePagesComeBackThatAreSeen) {
  make_cache(6, 12);
  compute(counted(40));
  for (uint32_t i = 1; i < 4; ++i) compute(counted(40, 1000 * i));
  EXPECT_EQ(kv_->lookup(counted(40)).tokens, 0u);
  const TierMatch match = kv_->lookup_on_disk(counted(40));
  EXPECT_EQ(match.tokens, 36u);
  // 9 pages of the layers that see everything; the next token sees 31 to 36 in the others: pages 7 and 8.
  EXPECT_EQ(std::ranges::count(match.pages, 0u, &TierMatch::Page::page), 9);
  EXPECT_EQ(std::ranges::count(match.pages, 1u, &TierMatch::Page::page), 2);
  bring_back(counted(40));
  EXPECT_EQ(kv_->lookup(counted(40)).tokens, 36u);
  compute(counted(40));
  kv_->check_invariants();
  tier_->check_invariants();
}

TEST_F(CacheWithDisk, WhatWasEvictedIsFoundUnderItsSaltAndUnderNoOther) {
  make_cache(0, 8);
  const CacheSalt one{.key = 1}, other{.key = 2};
  compute(counted(24), one);
  compute(counted(24, 1000));  // of which 4 have to go
  EXPECT_EQ(kv_->lookup_on_disk({counted(24), one}).tokens, 20u);
  for (const CacheSalt salt : {other, CacheSalt{}, CacheSalt{.key = 1, .text = 1}}) {
    EXPECT_EQ(kv_->lookup_on_disk({counted(24), salt}).tokens, 0u);
    EXPECT_FALSE(tier_->read(0, {counted(24), salt}).has_value());
    EXPECT_TRUE(tier_->pages_along({counted(24), salt}).empty());
  }
  bring_back(counted(24), one);
  EXPECT_EQ(kv_->lookup({counted(24), one}).tokens, 20u);
  EXPECT_EQ(kv_->lookup({counted(24), other}).tokens, 0u);
  compute(counted(24), other);  // the same tokens leave for the disk under both
  compute(counted(32, 2000));
  EXPECT_EQ(kv_->lookup_on_disk({counted(24), one}).tokens, 20u);
  EXPECT_EQ(kv_->lookup_on_disk({counted(24), other}).tokens, 20u);
  bring_back(counted(24), other);
  EXPECT_EQ(kv_->lookup({counted(24), other}).tokens, 20u);
  kv_->check_invariants();
  tier_->check_invariants();
}

TEST_F(CacheWithDisk, RandomTextsAlwaysFindTheirOwnBytes) {
  for (const uint32_t window : {0u, 6u}) {
    make_cache(window, 14);
    uint64_t gained = 0;
    for (uint32_t round = 0; round < 400; ++round) {
      Tokens tokens = counted(5 + random_() % 40, 1000 * (random_() % 6));
      if (random_() % 2 == 0) tokens[random_() % tokens.size()] = 7;
      const CacheSalt salt{.key = random_() % 2};
      const uint32_t before = kv_->lookup({tokens, salt}).tokens;
      bring_back(tokens, salt);
      gained += kv_->lookup({tokens, salt}).tokens - before;
      compute(tokens, salt);
      kv_->check_invariants();
      tier_->check_invariants();
    }
    EXPECT_GT(gained, 1000u);
    EXPECT_GT(tier_->stats().replaced_pages, 0u);
  }
}

}  // namespace
}  // namespace quire
