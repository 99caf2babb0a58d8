#include "kv/tiers/host_tier_case.h"

namespace quire {
namespace {

class CacheWithHost : public HostTierTest {
 protected:
  void make_cache(uint32_t pages, uint32_t host_pages, uint32_t ahead) {
    tier_ = make(host_pages);
    kv_ = std::make_unique<HostKv>(layout_, std::vector{pages, pages});
    kv_->evict_to(*tier_, {ahead, ahead});
  }
  // As a step does: a sequence of these tokens with rows that say which they are.
  void run(const HostTokens& tokens, CacheSalt salt = {}) {
    PageTable table = kv_->make_table({}, salt);
    const uint32_t found = kv_->attach(table, tokens).tokens;
    check_rows(table, tokens, found);
    ASSERT_TRUE(kv_->reserve(table, uint32_t(tokens.size())));
    const PageTable* tables[] = {&table};
    KvTables flat;
    const auto views = kv_->view(tables, flat);
    for (uint32_t t = found; t < tokens.size(); ++t) {
      for (uint32_t g = 0; g < 2; ++g) {
        if (table.pages(g)[t / kTokensOfAPage]) *row(views[g], g, t) = expected(tokens, t, g);
      }
    }
    kv_->publish(table, tokens, uint32_t(tokens.size()));
    kv_->release(table, tokens, uint32_t(tokens.size()), KvCache::Reason::finished);
    kv_->copy_ahead();
    kv_->settle_moves();
    kv_->check_invariants();
    tier_->check_invariants();
  }
  void check_rows(const PageTable& table, const HostTokens& tokens, uint32_t found) {
    const PageTable* tables[] = {&table};
    KvTables flat;
    const auto views = kv_->view(tables, flat);
    for (uint32_t t = 0; t < found; ++t) {
      for (uint32_t g = 0; g < 2; ++g) {
        if (!table.pages(g)[t / kTokensOfAPage]) continue;
        ASSERT_EQ(*row(views[g], g, t), expected(tokens, t, g)) << "token " << t << " group " << g;
      }
    }
  }
  static uint32_t expected(const HostTokens& tokens, uint32_t t, uint32_t g) {
    uint32_t hash = 17 + g;
    for (uint32_t i = 0; i <= t; ++i) hash = hash * 31 + tokens[i];
    return hash;
  }
  uint32_t* row(const KvGroupView& view, uint32_t g, uint32_t t) const {
    std::byte* page = view.pages + size_t(view.page_ids[t / kTokensOfAPage]) * layout_.groups[g].page_bytes;
    return reinterpret_cast<uint32_t*>(page) + t % kTokensOfAPage;
  }
  // Brings all the tier has of it, and says how much is found then.
  uint32_t bring(const HostTokens& tokens, CacheSalt salt = {}) {
    const TierMatch match = kv_->lookup_in_host({tokens, salt});
    if (match.pages.empty()) return kv_->lookup({tokens, salt}).tokens;
    const uint64_t use = kv_->touch({tokens, salt});
    const KvCache::Bringing bringing = kv_->bring_from_host({tokens, salt}, match.pages, use);
    EXPECT_GT(bringing.ticket, kv_->asides_made());
    EXPECT_LT(kv_->lookup({tokens, salt}).tokens, match.tokens) << "it is not here before it is moved";
    kv_->check_invariants();
    kv_->settle_moves();
    EXPECT_EQ(bringing.ticket, kv_->asides_made());
    EXPECT_EQ(kv_->pages_arriving(), 0u);
    kv_->check_invariants();
    tier_->check_invariants();
    return kv_->lookup({tokens, salt}).tokens;
  }

  std::unique_ptr<HostTier> tier_;
  std::unique_ptr<HostKv> kv_;
};

TEST_F(CacheWithHost, WhatWasEvictedComesBackAndIsFound) {
  make_cache(8, 64, 0);
  for (uint32_t i = 0; i < 6; ++i) run(ascending(17, i * 100));
  EXPECT_EQ(kv_->lookup(ascending(17, 0)).tokens, 0u);
  const TierMatch match = kv_->lookup_in_host(ascending(17, 0));
  EXPECT_EQ(match.tokens, 16u);
  EXPECT_EQ(match.memory_tokens, 0u);
  EXPECT_EQ(std::ranges::count(match.pages, 1u, &TierMatch::Page::page), 2) << "what the window sees";
  EXPECT_EQ(bring(ascending(17, 0)), 16u);
  EXPECT_GT(kv_->events().count(KvEventKind::fetched), 0u);
  run(ascending(17, 0));
}

TEST_F(CacheWithHost, APageThatCameBackLeavesAgainWithoutBeingMoved) {
  make_cache(8, 64, 0);
  for (uint32_t i = 0; i < 6; ++i) run(ascending(17, i * 100));
  EXPECT_EQ(bring(ascending(17, 0)), 16u);
  const uint64_t fetched = kv_->events().count(KvEventKind::fetched);
  const HostTier::Stats before = tier_->stats();
  for (uint32_t i = 1; i < 4; ++i) EXPECT_EQ(bring(ascending(17, i * 100)), 16u);
  EXPECT_EQ(kv_->lookup(ascending(17, 0)).tokens, 0u);
  const HostTier::Stats after = tier_->stats();
  EXPECT_GE(after.kept_pages, before.kept_pages + fetched);
  EXPECT_EQ(kv_->lookup_in_host(ascending(17, 0)).tokens, 16u);
}

TEST_F(CacheWithHost, PagesThatAreNextToGoAreCopiedBeforeAndThenLeaveAtOnce) {
  make_cache(12, 64, 6);
  run(ascending(16, 0));
  EXPECT_EQ(tier_->stats().pages, 0u) << "there is room";
  for (uint32_t i = 1; i < 8; ++i) {
    run(ascending(16, i * 100));
    EXPECT_GE(kv_->group_stats(0).free + tier_->pages_of(0), std::min(6u, i * 2));
  }
  const uint64_t stored = tier_->stats().stored_pages;
  PageTable table = kv_->make_table();
  ASSERT_TRUE(kv_->reserve(table, 16));
  EXPECT_EQ(tier_->stats().stored_pages, stored);
  EXPECT_TRUE(kv_->take_moves().empty()) << "nobody waits for a copy";
  kv_->release(table, {}, 0, KvCache::Reason::forgotten);
  kv_->check_invariants();
}

TEST_F(CacheWithHost, WhatOverwritesAPageWhoseCopyIsOnItsWaySaysSo) {
  make_cache(4, 64, 4);
  PageTable table = kv_->make_table();
  const HostTokens tokens = ascending(16);
  ASSERT_TRUE(kv_->reserve(table, 16));
  kv_->release(table, tokens, 16, KvCache::Reason::finished);
  kv_->settle_moves();
  kv_->copy_ahead();
  const KvMoves aside = kv_->take_aside();
  ASSERT_EQ(aside.list.size(), 8u) << "four pages of each group";
  ASSERT_TRUE(kv_->reserve(table, 16));
  EXPECT_EQ(kv_->take_moves().after, aside.list.back().ticket);
  kv_->moved_aside(aside);
  kv_->release(table, {}, 0, KvCache::Reason::forgotten);
  EXPECT_EQ(kv_->moves_on_their_way(), 0u);
  kv_->check_invariants();
  tier_->check_invariants();
}

TEST_F(CacheWithHost, SeveralWhoWantTheSamePagesWaitForTheSameMoves) {
  make_cache(12, 64, 0);
  for (uint32_t i = 0; i < 8; ++i) run(ascending(17, i * 100));
  const HostTokens tokens = ascending(17, 0);
  const TierMatch match = kv_->lookup_in_host(tokens);
  const auto first = kv_->bring_from_host(tokens, match.pages, kv_->touch(tokens));
  const auto second = kv_->bring_from_host(tokens, match.pages, kv_->touch(tokens));
  EXPECT_EQ(first.ticket, second.ticket);
  EXPECT_EQ(second.pages, match.pages.size());
  EXPECT_EQ(kv_->take_aside().list.size(), match.pages.size());
  kv_->forget_everything();
  kv_->check_invariants();
  tier_->check_invariants();
  EXPECT_EQ(kv_->stats().held_pages, 0u);
}

TEST_F(CacheWithHost, APageThatWasComputedMeanwhileIsNotDoubled) {
  make_cache(12, 64, 0);
  for (uint32_t i = 0; i < 8; ++i) run(ascending(17, i * 100));
  const HostTokens tokens = ascending(17, 0);
  const TierMatch match = kv_->lookup_in_host(tokens);
  kv_->bring_from_host(tokens, match.pages, kv_->touch(tokens));
  const KvMoves aside = kv_->take_aside();
  PageTable table = kv_->make_table();
  ASSERT_TRUE(kv_->reserve(table, 17));
  kv_->publish(table, tokens, 16);
  const uint32_t held = kv_->stats().held_pages;
  kv_->moved_aside(aside);
  EXPECT_EQ(kv_->stats().held_pages, held - aside.list.size());
  EXPECT_EQ(kv_->lookup(tokens).tokens, 16u);
  kv_->release(table, tokens, 16, KvCache::Reason::finished);
  kv_->check_invariants();
  tier_->check_invariants();
}

TEST_F(CacheWithHost, ComingBackEvictsOnlyWhatIsOlderThanItself) {
  make_cache(5, 64, 0);
  run(ascending(17, 0));
  run(ascending(17, 100));
  ASSERT_EQ(kv_->group_stats(0).free, 0u);
  const HostTokens tokens = ascending(17, 0);
  const TierMatch match = kv_->lookup_in_host(tokens);
  ASSERT_FALSE(match.pages.empty());
  const KvCache::Bringing bringing = kv_->bring_from_host(tokens, match.pages, 0);
  EXPECT_EQ(bringing.pages, 0u);
  kv_->settle_moves();
  EXPECT_EQ(kv_->lookup(ascending(17, 100)).tokens, 16u);
  EXPECT_EQ(bring(tokens), 16u) << "now it is the newest";
  tier_->check_invariants();
  kv_->check_invariants();
}

TEST_F(CacheWithHost, WhatWasEvictedIsFoundUnderItsSaltAndUnderNoOther) {
  make_cache(8, 64, 2);
  const CacheSalt salt{.key = 4, .text = 9};
  run(ascending(17, 0), salt);
  for (uint32_t i = 1; i < 6; ++i) run(ascending(17, i * 100));
  EXPECT_TRUE(kv_->lookup_in_host(ascending(17, 0)).pages.empty());
  EXPECT_EQ(bring(ascending(17, 0), salt), 16u);
  run(ascending(17, 0), salt);
}

TEST_F(CacheWithHost, ASnapshotHasWhatIsInTheHostsMemoryToo) {
  make_cache(8, 64, 2);
  const CacheSalt salt{.key = 4};
  for (uint32_t i = 0; i < 6; ++i) run(ascending(17, i * 100), i % 2 == 0 ? CacheSalt{} : salt);
  ASSERT_EQ(kv_->lookup(ascending(17, 0)).tokens, 0u);
  std::vector<KvNode> nodes;
  {
    KvExport all(*kv_);
    for (auto some = all.take(100, kv_->make_moves()); !some.empty(); some = all.take(100, kv_->make_moves()))
      nodes.insert(nodes.end(), some.begin(), some.end());
  }
  kv_->check_invariants();
  tier_->check_invariants();
  const auto before = std::move(kv_);
  kv_ = std::make_unique<HostKv>(layout_, std::vector{64u, 64u});
  KvImport import(*kv_);
  for (const KvNode& node : nodes) import.add(node, kv_->make_moves());
  EXPECT_EQ(import.commit().nodes_left_out, 0u);
  for (uint32_t i = 0; i < 6; ++i) {
    PageTable table = kv_->make_table({}, i % 2 == 0 ? CacheSalt{} : salt);
    const uint32_t found = kv_->attach(table, ascending(17, i * 100)).tokens;
    EXPECT_EQ(found, 16u) << i;
    check_rows(table, ascending(17, i * 100), found);
    kv_->release(table, {}, 0, KvCache::Reason::forgotten);
  }
  kv_->check_invariants();
}

TEST_F(CacheWithHost, RandomTextsAlwaysFindTheirOwnBytes) {
  for (const uint32_t ahead : {0u, 3u}) {
    make_cache(14, 24, ahead);
    for (int i = 0; i < 3000; ++i) {
      const uint32_t family = random_() % 5, length = 1 + random_() % 40;
      HostTokens tokens = ascending(length, family * 50);
      if (random_() % 3 == 0) tokens[random_() % length] = random_() % 400;
      const CacheSalt salt{.key = random_() % 2};
      if (random_() % 2 == 0) bring(tokens, salt);
      run(tokens, salt);
      if (HasFatalFailure()) return;
    }
    EXPECT_GT(tier_->stats().loaded_pages, 500u);
    EXPECT_GT(tier_->stats().replaced_pages, 500u);
    EXPECT_GT(tier_->stats().kept_pages, 100u);
  }
}

}  // namespace
}  // namespace quire
