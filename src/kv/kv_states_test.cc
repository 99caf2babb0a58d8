// States: what runs leave, where it can be found, and how a sequence goes back.
#include <unistd.h>

#include "kv/sharing_case.h"
#include "kv/tiers/disk_tier.h"
#include "kv/tiers/kv_export.h"

namespace quire {
namespace {

class KvStates : public Sharing {
 protected:
  static KvLayerShape state() {
    KvLayerShape shape = layer();
    shape.value_dim = 0;
    shape.state = true;
    return shape;
  }
  void make_with_states(uint32_t pages, uint32_t states, KvCacheOptions options = {}) {
    make({layer(), state()}, {pages, states}, options);
  }
  KvCache::GroupStats of_states() const { return kv_->group_stats(1); }
  void forget(Run& run) { kv_->release(run.table, {}, 0, KvCache::Reason::forgotten); }
};

TEST_F(KvStates, AreOneGroupOfOneRowWhoseNodesAreThoseOfTheOthers) {
  const KvLayout layout = make_kv_layout(std::vector{layer(0, 8), state(), layer(6, 12), state()}, 4);
  ASSERT_TRUE(layout.states.has_value());
  const KvGroupLayout& group = layout.groups[*layout.states];
  EXPECT_EQ(group.layers.size(), 2u);
  EXPECT_EQ(layout.node_tokens, 24u);
  EXPECT_EQ(group.page_tokens, 24u);
  EXPECT_EQ(layout.state_bytes(), 2 * 2 * sizeof(float));
  EXPECT_EQ(layout.bytes_per_token(),
            layout.groups[0].bytes_per_token() + layout.groups[2].bytes_per_token());
  EXPECT_EQ(make_kv_layout(std::vector{state()}, 16).node_tokens, 16u);
  EXPECT_FALSE(make_kv_layout(std::vector{layer()}, 4).has_states());
}

TEST_F(KvStates, ASequenceHoldsOneAndWithAWayBackTwo) {
  for (const bool way_back : {false, true}) {
    make_with_states(32, 6, {.sharing = false, .way_back = way_back});
    Run run = start(1, counted(40));
    for (uint32_t t = 1; t <= 40; t += 1 + t % 5) {
      ASSERT_TRUE(compute(run, t));
      EXPECT_LE(run.table.held_pages(1), way_back ? 2u : 1u) << t;
    }
    finish(run);
    EXPECT_EQ(kv_->stats().held_pages, 0u);
    EXPECT_EQ(of_states().free, 6u);
  }
}

TEST_F(KvStates, AreFoundWhereTheyWereWantedAndWhereASequenceEnded) {
  make_with_states(64, 16);
  Run first = start(1, counted(21));
  kv_->keep_state_at(first.table, 8);
  kv_->keep_state_at(first.table, 16);
  ASSERT_TRUE(compute(first, 21));  // in one run
  finish(first);
  EXPECT_EQ(of_states().cached, 3u);
  for (uint32_t part = 1; part < 24; ++part) {
    Tokens other = counted(30);
    other[part] = 99;
    EXPECT_EQ(kv_->lookup(other).tokens, part > 20 ? 21u : part / 8 * 8) << part;
  }
  for (const uint32_t part : {11u, 18u, 25u}) {
    Tokens other = counted(30);
    other[part] = 99;
    Run second = start(2, other);
    EXPECT_GT(second.match.tokens, 0u);
    ASSERT_TRUE(compute(second, 30));  // which looks at the state that it begins with
    forget(second);
  }
}

TEST_F(KvStates, WhatIsKnownWithoutOneIsSaidAndKeptForTheNext) {
  make_with_states(64, 16);
  Run first = start(1, counted(30));
  ASSERT_TRUE(compute(first, 30));
  finish(first);
  Tokens other = counted(40);
  other[22] = 99;  // the two have 20 tokens in common in whole nodes
  EXPECT_EQ(kv_->lookup(other).tokens, 0u);
  EXPECT_EQ(kv_->lookup(other).miss.text(), "state at token 0; 20 tokens computed");
  Run second = start(2, other);
  EXPECT_EQ(second.match.tokens, 0u);
  EXPECT_EQ(second.match.miss.why, Why::state);
  EXPECT_EQ(second.match.miss.known, 20u);
  ASSERT_TRUE(compute(second, 40));
  finish(second);
  Tokens third = counted(40);
  third[21] = 98;
  EXPECT_EQ(kv_->lookup(third).tokens, 20u) << "where the two parted";
}

TEST_F(KvStates, GoBackToWhereARunBegan) {
  make_with_states(64, 16, {.way_back = true});
  Run run = start(1, counted(30));
  ASSERT_TRUE(compute(run, 10));
  ASSERT_TRUE(kv_->reserve(run.table, 14));
  kv_->begin_run(run.table, 10, 1, 3);
  const PageId before = run.table.states().front().page.id();
  run_states(run, 10);
  ASSERT_EQ(run.table.states().size(), 2u);
  EXPECT_NE(run.table.states().back().page.id(), before);
  kv_->end_run(run.table, 10);  // all guesses were wrong
  ASSERT_EQ(run.table.states().size(), 1u);
  EXPECT_EQ(run.table.states().back().page.id(), before);
  ASSERT_TRUE(compute(run, 12)) << "and what it begins with is as it was";
  // And forward, where they were right.
  ASSERT_TRUE(kv_->reserve(run.table, 16));
  kv_->begin_run(run.table, 12, 1, 3);
  run_states(run, 12);
  run.computed = 16;
  kv_->end_run(run.table, 16);
  ASSERT_TRUE(compute(run, 17));
  finish(run);
  EXPECT_EQ(kv_->stats().held_pages, 0u);
}

TEST_F(KvStates, WhoIsForkedBetweenItsRoomAndItsRunHasRoomForBoth) {
  make_with_states(64, 16);
  Run run = start(1, counted(30));
  ASSERT_TRUE(compute(run, 10));
  ASSERT_TRUE(kv_->reserve(run.table, 11));  // its state may be written over: nobody else has it
  auto table = kv_->fork(run.table, 10, SequenceId{2});
  ASSERT_TRUE(table);
  kv_->begin_run(run.table, 10, 1);
  run_states(run, 10);
  *row(run, 0, 10) = history(std::span(run.tokens).first(11), {});
  run.computed = 11;
  kv_->end_run(run.table, 11);
  Run fork(*kv_, 2);
  fork.table = std::move(*table);
  fork.tokens = counted(30);
  fork.tokens[10] = 77;
  fork.computed = 10;
  ASSERT_TRUE(compute(fork, 30)) << "from the state as it was";
  ASSERT_TRUE(compute(run, 30));
  finish(run);
  finish(fork);
  EXPECT_EQ(kv_->stats().held_pages, 0u);
}

TEST_F(KvStates, AForkThatWouldTakeTheLastRoomIsNotMade) {
  make_with_states(64, 1);
  Run run = start(1, counted(30));
  ASSERT_TRUE(compute(run, 10));
  ASSERT_TRUE(kv_->reserve(run.table, 11));
  EXPECT_FALSE(kv_->fork(run.table, 10, SequenceId{2}));
  ASSERT_TRUE(compute(run, 11));
  finish(run);
}

TEST_F(KvStates, OfARunOnItsWayAreThereForTheNext) {
  make_with_states(64, 16, {.way_back = true});
  Run run = start(1, counted(30));
  ASSERT_TRUE(compute(run, 10));
  ASSERT_TRUE(kv_->reserve(run.table, 11));
  kv_->begin_run(run.table, 10, 1);
  run_states(run, 10);
  ASSERT_TRUE(kv_->reserve(run.table, 12));  // planned before the other has ended
  kv_->begin_run(run.table, 11, 1);
  run_states(run, 11);
  EXPECT_LE(run.table.held_pages(1), 2u);
  run.computed = 11;
  kv_->end_run(run.table, 11, 1);
  EXPECT_EQ(run.table.states().size(), 2u);
  kv_->end_run(run.table, 11);  // the second went astray
  ASSERT_TRUE(compute(run, 12));
  finish(run);
}

TEST_F(KvStates, AForkBeginsWithTheSameStateOrNotAtAll) {
  make_with_states(64, 16);
  Run run = start(1, counted(23));
  kv_->keep_state_at(run.table, 12);
  ASSERT_TRUE(compute(run, 23));
  for (uint32_t at = 1; at <= 23; ++at) {
    auto table = kv_->fork(run.table, at, SequenceId{5});
    EXPECT_EQ(table.has_value(), at == 12 || at == 23) << at;
    if (!table) continue;
    Run fork(*kv_, 5);
    fork.table = std::move(*table);
    fork.tokens = counted(30);
    fork.tokens[at] = 77;
    fork.computed = at;
    ASSERT_TRUE(compute(fork, 30));
    forget(fork);
  }
  run.tokens = counted(30);
  ASSERT_TRUE(compute(run, 30)) << "and what the forks wrote is not in its own";
  finish(run);
}

TEST_F(KvStates, HaveABudgetOfTheirOwnAndThoseNotUsedLongestGo) {
  make_with_states(200, 4);
  for (uint32_t i = 0; i < 6; ++i) {
    Run run = start(1 + i, counted(18, 100 * i));
    ASSERT_TRUE(compute(run, 18));
    finish(run);
    EXPECT_LE(of_states().cached, 4u);
    if (i < 4) continue;
    Run again = start(50 + i, [&] {  // the second is used again and again
      Tokens longer = counted(18, 100);
      longer.push_back(i);
      longer.push_back(7);
      return longer;
    }());
    EXPECT_EQ(again.match.tokens, i < 4 ? 0u : 18u) << i;
    forget(again);
  }
}

TEST_F(KvStates, ThatAreKeptOnlyInCaseTakeNobodysRoom) {
  make_with_states(4000, 3);
  Run first = start(1, counted(10));
  ASSERT_TRUE(compute(first, 10));
  finish(first);
  Run other = start(2, counted(10, 500));
  ASSERT_TRUE(compute(other, 10));
  finish(other);
  Run longest = start(3, counted(12300, 1000));  // three multiples of 4,096 on the way
  ASSERT_TRUE(compute(longest, 12300));
  EXPECT_EQ(kv_->lookup(counted(12)).tokens, 10u);
  EXPECT_EQ(kv_->lookup(counted(12, 500)).tokens, 10u);
  finish(longest);
  EXPECT_EQ(of_states().cached, 3u);
}

TEST_F(KvStates, OfAMultipleOf4096AreKeptWhereThereIsRoom) {
  make_with_states(4000, 8);
  Run longest = start(3, counted(9000));
  ASSERT_TRUE(compute(longest, 5000));
  ASSERT_TRUE(compute(longest, 9000));
  finish(longest);
  Tokens other = counted(9000);
  other[8500] = 1;
  EXPECT_EQ(kv_->lookup(other).tokens, 8192u);
  other[8000] = 1;
  EXPECT_EQ(kv_->lookup(other).tokens, 4096u);
}

TEST_F(KvStates, ArePinnedWithTheirPrefix) {
  make_with_states(40, 3);
  Run first = start(1, counted(17));
  kv_->keep_state_at(first.table, 16);
  ASSERT_TRUE(compute(first, 17));
  finish(first);
  PageTable pinned = kv_->pin(counted(16), SequenceId{9});
  for (uint32_t i = 1; i < 6; ++i) {
    Run other = start(1 + i, counted(18, 1000 * i));
    ASSERT_TRUE(compute(other, 18));
    finish(other);
  }
  EXPECT_EQ(kv_->lookup(counted(20)).tokens, 16u);
  kv_->release(pinned, {}, 0, KvCache::Reason::forgotten);
  EXPECT_EQ(kv_->stats().held_pages, 0u);
}

TEST_F(KvStates, LeaveOneCacheForAnother) {
  make_with_states(32, 8);
  Run first = start(1, counted(30));
  kv_->keep_state_at(first.table, 12);
  ASSERT_TRUE(compute(first, 30));
  finish(first);
  const std::vector<KvNode> nodes = KvExport(*kv_).take(SIZE_MAX, kv_->make_moves());
  const std::unique_ptr<HostKv> source = std::move(kv_);
  make_with_states(32, 8);
  KvImport import(*kv_);
  for (const KvNode& node : nodes) import.add(node, kv_->make_moves());
  import.commit();
  kv_->check_invariants();
  Run again = start(2, counted(33));
  EXPECT_EQ(again.match.tokens, 30u);
  ASSERT_TRUE(compute(again, 33));
  forget(again);
  Tokens other = counted(20);
  other[15] = 99;
  Run parted = start(3, other);
  EXPECT_EQ(parted.match.tokens, 12u);
  ASSERT_TRUE(compute(parted, 20));
  forget(parted);
}

TEST_F(KvStates, GoToTheDiskAndComeBack) {
  make_with_states(16, 3);
  DiskTier tier(kv_->layout(), {.folder = testing::TempDir(), .bytes = 1 << 20});
  kv_->evict_to(tier);
  Run first = start(1, counted(24));
  kv_->keep_state_at(first.table, 20);
  ASSERT_TRUE(compute(first, 24));
  finish(first);
  for (uint32_t i = 1; i < 5; ++i) {
    Run other = start(1 + i, counted(40, 1000 * i));
    ASSERT_TRUE(compute(other, 40));
    finish(other);
  }
  kv_->settle_moves();
  const Tokens tokens = counted(30);
  EXPECT_EQ(kv_->lookup(tokens).tokens, 0u);
  const TierMatch match = kv_->lookup_on_disk(tokens);
  EXPECT_EQ(match.tokens, 24u);
  const uint64_t use = kv_->touch(tokens);
  for (const TierMatch::Page& page : match.pages) {
    const SaltedTokens prefix = SaltedTokens(tokens).first((page.node + 1) * kv_->node_tokens());
    ASSERT_TRUE(tier.read(page.page, prefix).has_value());
    std::vector<DiskTier::Arrival> arrivals;
    for (int i = 0; i < 1000 && arrivals.empty(); ++i) {
      tier.wait(std::chrono::milliseconds(1000));
      arrivals = tier.take_arrivals();
    }
    ASSERT_TRUE(!arrivals.empty() && arrivals.front().bytes != nullptr);
    ASSERT_TRUE(kv_->bring_back(page.page, prefix, std::move(arrivals.front().bytes), use));
    kv_->settle_moves();
  }
  Run again = start(9, tokens);
  EXPECT_EQ(again.match.tokens, 24u);
  ASSERT_TRUE(compute(again, 30));
  finish(again);
  kv_->check_invariants();
}

TEST_F(KvStates, AreRightWhateverIsSharedForkedAndEvicted) {
  for (const bool way_back : {false, true}) {
    make({layer(), state()}, {40, 12}, {.way_back = way_back});
    let_everything_happen();
    make({layer(0, 8), state(), layer(5)}, {20, 10, 16}, {.way_back = way_back});
    let_everything_happen();
  }
}

TEST_F(KvStates, GetTheirShareOfTheMemory) {
  const KvLayout layout = make_kv_layout(std::vector{layer(), state()}, 4);
  const size_t state_bytes = layout.state_bytes();
  EXPECT_EQ(pages_for(layout, 40, 10, 3), (std::vector{30u, 6u}));
  EXPECT_EQ(pages_within(layout, 1 << 16, 16, 3)[1], 3 * kStatesHeld + kStatesKept);
  EXPECT_EQ(pages_within(layout, 1 << 16, 16, 3, 50 * state_bytes)[1], 50u);
  EXPECT_EQ(pages_within(layout, 1 << 16, 16, 3, 1)[1], kStatesHeld) << "what one needs at least";
  EXPECT_EQ(pages_within(layout, state_bytes * 30, 16, 3)[1], 15u) << "half of it at most";
}

}  // namespace
}  // namespace quire
