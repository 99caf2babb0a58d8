// Layer groups whose pages hold unequal numbers of tokens.
#include <unistd.h>

#include "kv/sharing_case.h"
#include "kv/tiers/disk_tier.h"
#include "kv/tiers/kv_export.h"

namespace quire {
namespace {

using KvGroups = Sharing;

TEST(KvGroupsLayout, HasAGroupForEachWindowAndSizeOfPages) {
  const KvLayout layout =
      make_kv_layout(std::vector{layer(), layer(6, 8), layer(6), layer(0, 12), layer(6, 8), layer(0, 4)}, 4);
  ASSERT_EQ(layout.groups.size(), 4u);
  const std::pair<uint32_t, uint32_t> kExpected[] = {{0, 4}, {6, 8}, {6, 4}, {0, 12}};
  for (size_t g = 0; g < 4; ++g) {
    EXPECT_EQ(layout.groups[g].window, kExpected[g].first);
    EXPECT_EQ(layout.groups[g].page_tokens, kExpected[g].second);
    EXPECT_EQ(layout.groups[g].bytes_per_token() * layout.groups[g].page_tokens, layout.groups[g].page_bytes);
  }
  EXPECT_EQ(layout.places[4][0].group, 1u);
  EXPECT_EQ(layout.places[5][0].group, 0u);
  EXPECT_EQ(layout.node_tokens, 24u);
  ASSERT_EQ(layout.node_pages.size(), 6u + 3u + 6u + 2u);
  EXPECT_EQ(layout.node_pages[7].group, 1u);
  EXPECT_EQ(layout.node_pages[7].index, 1u);
  EXPECT_EQ(layout.page_index(7, 2), 2 * 3 + 1u);
  EXPECT_TRUE(layout.reaches(7, 9));
  EXPECT_FALSE(layout.reaches(7, 8));
}

TEST(KvGroupsLayout, OfOneSizeOfPagesHasOnePageOfEachGroupInANode) {
  const KvLayout layout = make_kv_layout(std::vector{layer(), layer(6)}, 4);
  EXPECT_EQ(layout.node_tokens, 4u);
  EXPECT_EQ(layout.node_pages.size(), 2u);
}

TEST_F(KvGroups, EachTakesPagesOfItsOwnSize) {
  make({layer(), layer(6, 16)}, {16, 4});
  Run run = start(1, counted(40));
  ASSERT_TRUE(compute(run, 17));
  EXPECT_EQ(run.table.held_pages(0), 5u);
  EXPECT_EQ(run.table.held_pages(1), 2u);
  ASSERT_TRUE(compute(run, 23));  // the next sees 18 to 23
  EXPECT_EQ(run.table.held_pages(0), 6u);
  EXPECT_EQ(run.table.held_pages(1), 1u);
  EXPECT_EQ(pages_for(kv_->layout(), 40, 10, 2), (std::vector{20u, 4u}));
  finish(run);
  EXPECT_EQ(kv_->stats().held_pages, 0u);
}

// Each place where a text may go on otherwise, with every page still there.
TEST_F(KvGroups, ATextIsFoundUpToWhereItDiffersWhateverTheSizes) {
  for (const auto& [full, window] : {std::pair(4u, 16u), std::pair(16u, 4u), std::pair(12u, 8u)}) {
    make({layer(0, full), layer(6, window)}, {64, 64});
    Run first = start(1, counted(60));
    ASSERT_TRUE(compute(first, 60));
    EXPECT_EQ(kv_->lookup(counted(60)).tokens, 60 / kv_->node_tokens() * kv_->node_tokens() -
                                                   (60 % kv_->node_tokens() == 0 ? kv_->node_tokens() : 0));
    finish(first);
    uint32_t found = 0;
    for (uint32_t part = 1; part < 60; ++part) {
      Tokens other = counted(64);
      other[part] = 99;
      Run second = start(2, other);
      expect_right_rows(second);
      EXPECT_TRUE(second.match.tokens == part || second.match.miss.why == Why::window) << part;
      found += second.match.tokens == part ? 1 : 0;
      kv_->release(second.table, {}, 0, KvCache::Reason::forgotten);
    }
    EXPECT_GT(found, 10u);
  }
}

TEST_F(KvGroups, WhatIsTooMuchToCopyLeavesWholeNodesThatCanBeContinued) {
  make({layer(0, 16), layer(4)}, {8, 40});
  Run first = start(1, counted(30));
  for (uint32_t t = 2; t <= 30; t += 2) ASSERT_TRUE(compute(first, t));
  finish(first);
  Run other = start(2, counted(80, 500));
  ASSERT_TRUE(compute(other, 80));  // five pages of 16; one is left, and two are cached
  EXPECT_EQ(kv_->group_stats(0).free, 1u);
  PageTable pinned = kv_->pin(counted(16), SequenceId{7});
  Run rest = start(3, counted(16, 900));
  ASSERT_TRUE(compute(rest, 16));
  // The page to copy is cached, and there is no other to copy to.
  Run again = start(4, counted(30));
  EXPECT_EQ(again.match.tokens, 16u);
  EXPECT_EQ(again.match.miss.why, Why::no_room);
  expect_right_rows(again);
  for (Run* run : {&other, &rest, &again}) finish(*run);
  kv_->release(pinned, {}, 0, KvCache::Reason::forgotten);
  kv_->check_invariants();
}

TEST_F(KvGroups, WithoutRoomToCopyAndWithoutTheWindowBeforeThatNothingIsTaken) {
  make({layer(0, 16), layer(4)}, {8, 40});
  Run first = start(1, counted(30));
  ASSERT_TRUE(compute(first, 30));
  finish(first);
  std::vector<KvNode> nodes = KvExport(*kv_).take(SIZE_MAX, kv_->make_moves());
  for (size_t page = 1; page < nodes[0].pages.size(); ++page) nodes[0].pages[page].clear();
  const std::unique_ptr<HostKv> source = std::move(kv_);
  for (const uint32_t pages : {3u, 2u}) {
    make({layer(0, 16), layer(4)}, {pages, 40});
    KvImport import(*kv_);
    for (const KvNode& node : nodes) import.add(node, kv_->make_moves());
    import.commit();
    Run again = start(2, counted(30));
    EXPECT_EQ(again.match.tokens, pages == 3 ? 29u : 0u);
    expect_right_rows(again);
    finish(again);
  }
}

TEST_F(KvGroups, EveryRowIsRightWhateverIsSharedForkedAndEvicted) {
  make({layer(0, 8), layer(5)}, {14, 16});
  let_everything_happen();
  make({layer(), layer(5, 8)}, {24, 9});
  let_everything_happen();
  make({layer(0, 2), layer(1, 4), layer(3, 6)}, {48, 14, 12});
  let_everything_happen();
}

TEST_F(KvGroups, GoToTheDiskAndComeBack) {
  for (const auto& [full, window] : {std::pair(4u, 8u), std::pair(8u, 2u)}) {
    make({layer(0, full), layer(6, window)}, {48 / full, 40 / window});
    DiskTier tier(kv_->layout(), {.folder = testing::TempDir(), .bytes = 1 << 20});
    kv_->evict_to(tier);
    Run first = start(1, counted(40));
    for (uint32_t t = 4; t <= 40; t += 4) ASSERT_TRUE(compute(first, t));
    finish(first);
    for (uint32_t i = 1; i < 4; ++i) {
      Run other = start(1 + i, counted(40, 1000 * i));
      ASSERT_TRUE(compute(other, 40));
      finish(other);
    }
    kv_->settle_moves();
    const Tokens tokens = counted(40);
    const TierMatch match = kv_->lookup_on_disk(tokens);
    EXPECT_EQ(match.tokens, 32u);
    EXPECT_LT(match.memory_tokens, 32u);
    size_t bytes = 0;
    const uint64_t use = kv_->touch(tokens);
    for (const TierMatch::Page& page : match.pages) {
      bytes += kv_->layout().node_page_bytes(page.page);
      const SaltedTokens prefix = SaltedTokens(tokens).first((page.node + 1) * kv_->node_tokens());
      const auto ticket = tier.read(page.page, prefix);
      ASSERT_TRUE(ticket.has_value());
      std::vector<DiskTier::Arrival> arrivals;
      while (arrivals.empty()) {
        tier.wait(std::chrono::milliseconds(1000));
        arrivals = tier.take_arrivals();
      }
      ASSERT_TRUE(arrivals.front().bytes != nullptr);
      ASSERT_TRUE(kv_->bring_back(page.page, prefix, std::move(arrivals.front().bytes), use));
      kv_->settle_moves();
    }
    EXPECT_EQ(bytes, match.bytes);
    Run again = start(9, tokens);
    EXPECT_EQ(again.match.tokens, 32u);
    expect_right_rows(again);
    finish(again);
    tier.check_invariants();
    kv_->check_invariants();
  }
}

TEST_F(KvGroups, LeaveOneCacheForAnother) {
  make({layer(0, 8), layer(6)}, {12, 24});
  Run first = start(1, counted(30));
  for (uint32_t t = 3; t <= 30; t += 3) ASSERT_TRUE(compute(first, t));
  finish(first);
  const std::vector<KvNode> nodes = KvExport(*kv_).take(SIZE_MAX, kv_->make_moves());
  ASSERT_EQ(nodes.size(), 4u);
  EXPECT_EQ(nodes.back().tokens.size(), 6u);
  EXPECT_EQ(nodes.back().pages.size(), 3u);
  const std::unique_ptr<HostKv> source = std::move(kv_);
  // Room for all, and for two of the nodes only: the third wants two pages of the second group, and one is left.
  for (const uint32_t window_pages : {24u, 5u}) {
    make({layer(0, 8), layer(6)}, {12, window_pages});
    KvImport import(*kv_);
    for (const KvNode& node : nodes) import.add(node, kv_->make_moves());
    const KvImport::Result result = import.commit();
    EXPECT_EQ(result.nodes_left_out, window_pages == 24 ? 0u : 2u);
    kv_->check_invariants();
    Run again = start(2, counted(30));
    EXPECT_EQ(again.match.tokens, window_pages == 24 ? 29u : 16u);
    expect_right_rows(again);
    finish(again);
  }
}

}  // namespace
}  // namespace quire
