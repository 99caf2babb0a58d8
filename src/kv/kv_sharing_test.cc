#include "kv/sharing_case.h"

namespace quire {
namespace {

TEST_F(Sharing, APromptThatWasSeenIsFoundUpToItsLastToken) {
  make({layer()}, {16});
  Run first = start(1, counted(10));
  EXPECT_EQ(first.match.miss.why, Why::never_seen);
  ASSERT_TRUE(compute(first, 10));
  finish(first);
  EXPECT_EQ(kv_->stats().held_pages, 0u);
  EXPECT_EQ(kv_->stats().cached_pages, 3u);
  Run second = start(2, counted(10));
  EXPECT_EQ(second.match.tokens, 9u);
  EXPECT_EQ(second.match.miss.why, Why::nothing);
  expect_right_rows(second);
  ASSERT_TRUE(compute(second, 10));
  expect_right_rows(second);
}

TEST_F(Sharing, AMatchThatEndsInsideAPageCopiesItsRowsAndLeavesTheOthersAlone) {
  make({layer()}, {16});
  Run first = start(1, counted(12));
  ASSERT_TRUE(compute(first, 12));
  Tokens other = counted(12);
  other[6] = 99;
  Run second = start(2, other);
  EXPECT_EQ(second.match.tokens, 6u);
  EXPECT_EQ(second.match.miss.why, Why::differs);
  EXPECT_EQ(second.match.miss.text(), "differs at token 6");
  ASSERT_TRUE(compute(second, 12));
  expect_right_rows(second);
  expect_right_rows(first);
  EXPECT_EQ(second.table.pages(0)[0]->id(), first.table.pages(0)[0]->id());
  EXPECT_NE(second.table.pages(0)[1]->id(), first.table.pages(0)[1]->id());
}

TEST_F(Sharing, ALongerTextIsNewFromWhereTheCachedOneEnds) {
  make({layer()}, {16});
  Run first = start(1, counted(6));
  ASSERT_TRUE(compute(first, 6));
  finish(first);
  Run second = start(2, counted(20));
  EXPECT_EQ(second.match.tokens, 6u);
  EXPECT_EQ(second.match.miss.why, Why::ended);
  ASSERT_TRUE(compute(second, 20));
  expect_right_rows(second);
}

TEST_F(Sharing, TwoThatComputeTheSameKeepOneCopy) {
  make({layer()}, {16});
  Run first = start(1, counted(9)), second = start(2, counted(9));
  ASSERT_TRUE(compute(first, 8));
  ASSERT_TRUE(compute(second, 8));
  EXPECT_EQ(kv_->stats().held_pages, 2u);
  EXPECT_EQ(kv_->stats().shared_bytes, 2 * kv_->layout().groups[0].page_bytes);
  expect_right_rows(second);
}

TEST_F(Sharing, TheOldestGoesFirstAndOfOneTextTheDeepestPage) {
  make({layer()}, {6});
  for (uint32_t i = 0; i < 2; ++i) {
    Run run = start(i, counted(12, 100 * i));
    ASSERT_TRUE(compute(run, 12));
    finish(run);
  }
  Run third = start(2, counted(4, 500));
  ASSERT_TRUE(compute(third, 4));  // evicts one page: the last of the first text
  Tokens again = counted(13);
  EXPECT_EQ(kv_->lookup(again).tokens, 8u);
  EXPECT_EQ(kv_->lookup(again).miss.why, Why::evicted);
  EXPECT_EQ(kv_->lookup(counted(13, 100)).tokens, 12u);
  EXPECT_EQ(kv_->events().count(KvEventKind::evicted), 1u);
}

TEST_F(Sharing, WhatIsHeldOrPinnedIsNotEvicted) {
  make({layer()}, {4});
  Run first = start(1, counted(8));
  ASSERT_TRUE(compute(first, 8));
  finish(first);
  PageTable pinned = kv_->pin(counted(8), SequenceId{7});
  Run second = start(2, counted(12, 50));
  EXPECT_FALSE(compute(second, 12));
  ASSERT_TRUE(compute(second, 8));
  EXPECT_EQ(kv_->lookup(counted(9)).tokens, 8u);
  kv_->release(pinned, {}, 0, KvCache::Reason::forgotten);
  EXPECT_TRUE(compute(second, 12));
  EXPECT_LT(kv_->lookup(counted(9)).tokens, 8u);
}

TEST_F(Sharing, AForkSharesWholePagesAndCopiesTheOneInWhichItParts) {
  make({layer()}, {16});
  Run first = start(1, counted(20));
  ASSERT_TRUE(compute(first, 14));
  Run second(*kv_, 2);
  second.table = *kv_->fork(first.table, 10, SequenceId{2});
  second.tokens = counted(10);
  second.tokens.insert(second.tokens.end(), {77, 78, 79});
  second.computed = 10;
  expect_right_rows(second);
  ASSERT_TRUE(compute(second, 13));
  ASSERT_TRUE(compute(first, 20));
  expect_right_rows(first);
  expect_right_rows(second);
  EXPECT_EQ(kv_->stats().held_pages, 5u + 2u);
}

TEST_F(Sharing, WindowLayersContinueAPrefixOnlyWhereTheirWindowIsStillThere) {
  make({layer(), layer(6)}, {32, 6});
  Run first = start(1, counted(40));
  for (uint32_t t = 4; t <= 40; t += 4) ASSERT_TRUE(compute(first, t));
  finish(first);
  Run second = start(2, counted(48));
  EXPECT_EQ(second.match.tokens, 40u);
  expect_right_rows(second);
  for (uint32_t t = 44; t <= 48; t += 4) ASSERT_TRUE(compute(second, t));
  expect_right_rows(second);
  finish(second);
  // The window group has room for six pages only: not every place of the text can be continued.
  uint32_t gone = 0;
  for (uint32_t part = 1; part < 48; ++part) {
    Tokens other = counted(48);
    other[part] = 99;
    Run third = start(3, other);
    expect_right_rows(third);
    EXPECT_TRUE(third.match.tokens == part || third.match.miss.why == Why::window);
    gone += third.match.tokens < part ? 1 : 0;
    kv_->release(third.table, {}, 0, KvCache::Reason::forgotten);
  }
  EXPECT_GT(gone, 10u);
  EXPECT_LT(gone, 40u);
}

TEST_F(Sharing, WhatWasPreemptedIsFoundAgain) {
  make({layer()}, {8});
  Run run = start(1, counted(20));
  ASSERT_TRUE(compute(run, 18));
  finish(run, KvCache::Reason::preempted);
  EXPECT_EQ(kv_->events().count(KvEventKind::preempted), 5u);
  run.match = kv_->attach(run.table, run.tokens);
  EXPECT_EQ(run.match.tokens, 18u);
  run.computed = 18;
  expect_right_rows(run);
}

TEST_F(Sharing, NothingIsPublishedWhenItIsOff) {
  kv_ = std::make_unique<HostKv>(make_kv_layout(std::vector{layer()}, 4), std::vector{8u},
                                 KvCacheOptions{.sharing = false});
  Run first = start(1, counted(12));
  ASSERT_TRUE(compute(first, 12));
  finish(first);
  EXPECT_EQ(kv_->stats().free_pages, 8u);
  EXPECT_EQ(kv_->lookup(counted(12)).miss.why, Why::off);
}

TEST_F(Sharing, NothingIsFoundUnderAnotherSalt) {
  make({layer(), layer(5)}, {32, 32});
  const CacheSalt one{.key = 1}, other{.key = 2}, both{.key = 1, .text = 5};
  Run first = start(1, counted(10), one);
  ASSERT_TRUE(compute(first, 10));
  EXPECT_EQ(kv_->lookup({counted(10), one}).tokens, 8u);
  for (const CacheSalt salt : {CacheSalt{}, other, both, CacheSalt{.text = 1}}) {
    const PrefixMatch match = kv_->lookup({counted(10), salt});
    EXPECT_EQ(match.tokens, 0u);
    EXPECT_EQ(match.miss.why, Why::never_seen);
    EXPECT_EQ(kv_->pin({counted(10), salt}, SequenceId{9}).reserved_tokens(), 0u);
  }
  finish(first);
  Run second = start(2, counted(10), other);  // alone with what it computes
  EXPECT_EQ(second.match.tokens, 0u);
  ASSERT_TRUE(compute(second, 10));
  expect_right_rows(second);
  Run third = start(3, counted(10));
  EXPECT_EQ(third.match.tokens, 0u);
  finish(second);
  finish(third);
  EXPECT_EQ(kv_->lookup({counted(10), one}).tokens, 9u);
  EXPECT_EQ(kv_->lookup({counted(10), other}).tokens, 9u);
  EXPECT_EQ(kv_->lookup(counted(10)).tokens, 0u);
  EXPECT_EQ(kv_->salts(), 2u);
}

TEST_F(Sharing, WithinASaltAllIsAsWithoutOne) {
  make({layer()}, {16});
  const CacheSalt salt{.key = 3, .text = 4};
  Run first = start(1, counted(12), salt);
  ASSERT_TRUE(compute(first, 12));
  std::optional<PageTable> forked = kv_->fork(first.table, 6, SequenceId{2});
  ASSERT_TRUE(forked.has_value());
  EXPECT_EQ(forked->salt(), salt);
  std::optional<PageTable> early = kv_->fork(first.table, 2, SequenceId{3});  // nothing of it is a full page
  ASSERT_TRUE(early.has_value());
  EXPECT_EQ(early->salt(), salt);
  kv_->release(*early, counted(2), 2, KvCache::Reason::finished);
  kv_->release(*forked, counted(6), 6, KvCache::Reason::finished);
  finish(first, KvCache::Reason::preempted);
  Run again = start(4, counted(12), salt);
  EXPECT_EQ(again.match.tokens, 11u);
  expect_right_rows(again);
  finish(again);
  PageTable pinned = kv_->pin({counted(12), salt}, SequenceId{5});
  EXPECT_EQ(pinned.reserved_tokens(), 12u);
  Run large = start(6, counted(60, 500));
  ASSERT_TRUE(compute(large, 52));  // all the room that the pin leaves
  finish(large);
  EXPECT_EQ(kv_->lookup({counted(12), salt}).tokens, 11u);
  kv_->release(pinned, {}, 0, KvCache::Reason::forgotten);
  kv_->check_invariants();
}

TEST_F(Sharing, OfSaltsWhosePagesAreGoneNothingIsLeft) {
  make({layer()}, {8});
  for (uint32_t i = 0; i < 5000; ++i) {
    Run run = start(i, counted(6), {.key = 1, .text = i + 1});
    EXPECT_EQ(run.match.tokens, 0u);
    ASSERT_TRUE(compute(run, 6));
    finish(run, i % 3 == 0 ? KvCache::Reason::forgotten : KvCache::Reason::finished);
    ASSERT_LE(kv_->salts(), 8u);
  }
  const PrefixMatch gone = kv_->lookup({counted(6), {.key = 1, .text = 4000}});
  EXPECT_EQ(gone.miss.why, Why::evicted) << "which is still said of its own salt";
  EXPECT_EQ(kv_->lookup({counted(6), {.key = 2, .text = 4000}}).miss.why, Why::never_seen);
  Run all = start(9999, counted(32, 100));
  ASSERT_TRUE(compute(all, 32));
  EXPECT_EQ(kv_->salts(), 0u);
  finish(all);
}

TEST_F(Sharing, TheOldestGoesFirstWhateverItsSalt) {
  make({layer()}, {6});
  const CacheSalt one{.key = 1}, other{.key = 2};
  Run first = start(1, counted(8), one);
  ASSERT_TRUE(compute(first, 8));
  finish(first);
  Run second = start(2, counted(8), other);
  ASSERT_TRUE(compute(second, 8));
  finish(second);
  Run again = start(3, counted(8), one);
  finish(again, KvCache::Reason::forgotten);
  Run third = start(4, counted(12, 50));
  ASSERT_TRUE(compute(third, 12));
  EXPECT_EQ(kv_->lookup({counted(8), one}).tokens, 7u);
  EXPECT_LT(kv_->lookup({counted(8), other}).tokens, 7u);
  finish(third);
}

TEST_F(Sharing, EveryRowIsRightWhateverIsSharedForkedAndEvicted) {
  make({layer()}, {24});
  let_everything_happen();
  make({layer(), layer(5)}, {24, 14});
  let_everything_happen();
}

TEST(PagesWithin, FillTheMemoryAndNoMore) {
  const KvLayout layout = make_kv_layout(std::vector{layer(), layer(64)}, 32);
  const auto pages = pages_within(layout, 1 << 20, 512, 4);
  EXPECT_LE(kv_bytes(layout, pages), size_t(1 << 20));
  EXPECT_GT(kv_bytes(layout, pages), size_t((1 << 20) - 4 * layout.groups[0].page_bytes));
  EXPECT_LT(pages[1], pages[0]);
}

}  // namespace
}  // namespace quire
