// The disk tier as the cache uses it.
#include <algorithm>
#include <cstring>
#include <random>

#include "kv/host_kv.h"
#include "kv/tiers/disk_tier_case.h"

namespace quire {
namespace {

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
