// Who is told which blocks are where.
#include "kv/block_ledger_case.h"
#include "kv/sharing_case.h"
#include "kv/tiers/disk_tier_case.h"
#include "kv/tiers/host_tier_case.h"

namespace quire {
namespace {

using Prefixes = std::set<std::vector<TokenId>>;

class News : public Sharing {
 protected:
  void make_told(std::vector<KvLayerShape> layers, std::vector<uint32_t> pages) {
    make(std::move(layers), std::move(pages));
    kv_->tell(&ledger_);
  }
  void say(uint32_t id, const Tokens& tokens, CacheSalt salt = {}) {
    Run run = start(id, tokens, salt);
    ASSERT_TRUE(compute(run, uint32_t(tokens.size())));
    finish(run);
  }
  // Full pages that can be found by everybody.
  size_t findable(uint32_t group) const {
    size_t count = 0;
    for (const KvCache::PageState& page : kv_->pages_in_use(group))
      count += page.published && page.salt.is_none() && page.tokens == 4 ? 1 : 0;
    return count;
  }
  BlockLedger ledger_;
};

TEST_F(News, ABlockIsToldWhenItIsFullWithTheOneBeforeIt) {
  make_told({layer()}, {16});
  Run run = start(1, counted(11));
  ASSERT_TRUE(compute(run, 3));
  EXPECT_EQ(ledger_.told(), 0u);
  ASSERT_TRUE(compute(run, 11));
  EXPECT_EQ(ledger_.prefixes(BlockPlace::memory), (Prefixes{counted(4), counted(8)}));
  finish(run);
  EXPECT_EQ(ledger_.told(), 2u) << "of a part of a block nobody hears";
}

TEST_F(News, WhatIsFoundAgainOrComputedTwiceIsToldOnce) {
  make_told({layer()}, {16});
  Run first = start(1, counted(9)), second = start(2, counted(9));
  ASSERT_TRUE(compute(first, 9));
  ASSERT_TRUE(compute(second, 9));
  finish(first);
  finish(second);
  say(3, counted(9));
  EXPECT_EQ(ledger_.told(), 2u);
  Tokens other = counted(12);
  other[5] = 99;
  say(4, other);
  EXPECT_EQ(ledger_.at(BlockPlace::memory).size(), 4u) << "the first block is common to both";
}

TEST_F(News, WhatMustMakeRoomIsToldToBeGone) {
  make_told({layer()}, {4});
  say(1, counted(16));
  EXPECT_EQ(ledger_.at(BlockPlace::memory).size(), 4u);
  say(2, counted(8, 100));
  EXPECT_EQ(ledger_.prefixes(BlockPlace::memory),
            (Prefixes{counted(4), counted(8), counted(4, 100), counted(8, 100)}));
}

TEST_F(News, ABlockOfSeveralPagesIsGoneWithTheFirstOfThem) {
  make_told({layer(0, 2), layer()}, {8, 8});
  say(1, counted(16));
  EXPECT_EQ(ledger_.told(), 4u);
  say(2, counted(8, 100));
  EXPECT_EQ(ledger_.prefixes(BlockPlace::memory),
            (Prefixes{counted(4), counted(8), counted(4, 100), counted(8, 100)}));
  EXPECT_EQ(ledger_.told(), 4u + 2u + 2u);
}

TEST_F(News, NobodyHearsOfTokensUnderASalt) {
  make_told({layer()}, {4});
  say(1, counted(16), {.key = 1});
  say(2, counted(16), {.text = 1});
  EXPECT_EQ(ledger_.told(), 0u);
  say(3, counted(8));
  EXPECT_EQ(ledger_.prefixes(BlockPlace::memory), (Prefixes{counted(4), counted(8)}));
  EXPECT_EQ(ledger_.told(), 2u) << "and of what they lost neither";
}

TEST_F(News, WhenEverythingIsForgottenThatIsSaidOnce) {
  make_told({layer()}, {8});
  say(1, counted(16));
  kv_->forget_everything();
  EXPECT_EQ(ledger_.cleared_times(), 1u);
  EXPECT_TRUE(ledger_.at(BlockPlace::memory).empty());
  say(2, counted(8));
  EXPECT_EQ(ledger_.at(BlockPlace::memory).size(), 2u);
}

TEST_F(News, WhatAWindowHasPassedIsStillThere) {
  make_told({layer(), layer(6)}, {8, 4});
  Run run = start(1, counted(28));
  for (uint32_t until = 4; until <= 28; until += 4) ASSERT_TRUE(compute(run, until));
  EXPECT_GT(kv_->events().count(KvEventKind::evicted), 0u);
  EXPECT_EQ(ledger_.at(BlockPlace::memory).size(), 7u);
  finish(run);
}

TEST_F(News, WhereEverythingIsBehindAWindowItsPagesCount) {
  make_told({layer(6)}, {4});
  Run run = start(1, counted(28));
  for (uint32_t until = 4; until <= 28; until += 4) ASSERT_TRUE(compute(run, until));
  finish(run);
  EXPECT_EQ(ledger_.at(BlockPlace::memory).size(), findable(0));
  EXPECT_LT(findable(0), 7u);
}

TEST_F(News, WhateverHappensTheListenerKnowsWhatCanBeFound) {
  make_told({layer()}, {14});
  let_everything_happen();
  EXPECT_GT(ledger_.told(), 1000u);
  EXPECT_EQ(ledger_.at(BlockPlace::memory).size(), findable(0));
}

TEST_F(News, WithoutAListenerNothingIsSaid) {
  make_told({layer()}, {4});
  say(1, counted(8));
  kv_->tell(nullptr);
  say(2, counted(16, 100));
  EXPECT_EQ(ledger_.told(), 2u);
}

// As a step does, with rows that nobody looks at.
void compute_in(HostKv& kv, const std::vector<TokenId>& tokens, CacheSalt salt = {}) {
  PageTable table = kv.make_table({}, salt);
  kv.attach(table, tokens);
  ASSERT_TRUE(kv.reserve(table, uint32_t(tokens.size())));
  kv.publish(table, tokens, uint32_t(tokens.size()));
  kv.release(table, tokens, uint32_t(tokens.size()), KvCache::Reason::finished);
  kv.settle_moves();
}

class NewsOfTheDisk : public DiskTierTest {};

TEST_F(NewsOfTheDisk, ABlockIsThereFromWhenItIsStoredUntilItsSlotIsNeeded) {
  layout_ = layout(0);
  const auto disk = make(6);
  HostKv kv(layout_, std::vector<uint32_t>{4});
  kv.evict_to(*disk);
  BlockLedger ledger;
  kv.tell(&ledger);
  compute_in(kv, counted(16));
  EXPECT_TRUE(ledger.at(BlockPlace::disk).empty());
  compute_in(kv, counted(16, 100));
  EXPECT_EQ(ledger.prefixes(BlockPlace::disk), (Prefixes{counted(4), counted(8), counted(12), counted(16)}));
  EXPECT_EQ(ledger.at(BlockPlace::memory).size(), 4u);
  compute_in(kv, counted(16, 200), {.key = 5});
  EXPECT_TRUE(ledger.at(BlockPlace::memory).empty());
  EXPECT_EQ(ledger.at(BlockPlace::disk).size(), 6u) << "what was stored first had to go";
  compute_in(kv, counted(16, 300));
  EXPECT_EQ(ledger.at(BlockPlace::disk).size(), 2u) << "others' blocks are there, of which nobody hears";
  kv.forget_everything();
  EXPECT_EQ(ledger.cleared_times(), 1u);
  kv.check_invariants();
  disk->check_invariants();
}

class NewsOfTheHost : public HostTierTest {};

TEST_F(NewsOfTheHost, ABlockIsThereAsLongAsItsPagesAre) {
  const auto host = make(4);
  HostKv kv(layout_, std::vector<uint32_t>{4, 4});
  kv.evict_to(*host, {0, 0});
  BlockLedger ledger;
  kv.tell(&ledger);
  compute_in(kv, ascending(16));
  compute_in(kv, ascending(16, 100));
  EXPECT_EQ(ledger.prefixes(BlockPlace::host),
            (Prefixes{ascending(4), ascending(8), ascending(12), ascending(16)}));
  compute_in(kv, ascending(8, 200));
  EXPECT_EQ(ledger.at(BlockPlace::host).size(), 4u);
  EXPECT_EQ(ledger.at(BlockPlace::host).size(), host->pages_of(0));
  const TierMatch match = kv.lookup_in_host(ascending(9));
  ASSERT_FALSE(match.pages.empty());
  const uint64_t use = kv.touch(ascending(9));
  kv.bring_from_host(ascending(9), match.pages, use);
  EXPECT_FALSE(ledger.prefixes(BlockPlace::memory).contains(ascending(4))) << "not before it is here";
  kv.settle_moves();
  EXPECT_TRUE(ledger.prefixes(BlockPlace::memory).contains(ascending(4)));
  kv.check_invariants();
  host->check_invariants();
}

}  // namespace
}  // namespace quire
