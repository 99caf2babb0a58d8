#include "kv/tiers/kv_export.h"

#include <gmock/gmock.h>

#include "base/error.h"
#include "kv/tiers/test_snapshots.h"

namespace quire {
namespace {

using Export = SnapshotTest;

TEST_F(Export, GivesParentsBeforeChildrenAndWhatWasUsedLastFirst) {
  const auto kv = make({layer(KvFormat::f32)});
  compute(*kv, counted(12));
  compute(*kv, counted(10, 100));
  Tokens forked = counted(12);
  forked[8] = 77;
  compute(*kv, forked);
  const std::vector<KvNode> nodes = nodes_of(*kv);
  ASSERT_EQ(nodes.size(), 7u);
  EXPECT_EQ(nodes[2].tokens, (Tokens{77, 9, 10, 11}));
  EXPECT_EQ(nodes[2].parent, 1u);
  for (uint32_t i = 0; i < nodes.size(); ++i)
    EXPECT_TRUE(nodes[i].parent == KvNode::kNoParent || nodes[i].parent < i);
  EXPECT_EQ(nodes[3].tokens, counted(4, 100));
  EXPECT_EQ(nodes[6].tokens, counted(4, 8)) << "only the first sequence had it, and it is the oldest";
  kv->check_invariants();
}

TEST_F(Export, OfOnePromptHasItsPagesAndNobodyElses) {
  const auto kv = make({layer(KvFormat::f32)});
  compute(*kv, counted(10));
  compute(*kv, counted(10, 100));
  Tokens longer = counted(11);
  longer.back() = 55;
  KvExport whole(*kv, longer);  // its last token was never computed
  const std::vector<KvNode> nodes = whole.take(SIZE_MAX, kv->make_moves());
  ASSERT_EQ(nodes.size(), 3u);
  EXPECT_EQ(nodes[2].tokens, counted(2, 8));
  KvExport part(*kv, counted(9));
  EXPECT_EQ(part.nodes(), 2u) << "the page of token 8 has another's token 9 as well";
  EXPECT_EQ(KvExport(*kv, counted(3, 50)).nodes(), 0u);
  kv->check_invariants();
}

TEST_F(Export, GoesOnWhilePagesAreEvictedAndHoldsNone) {
  const auto kv = make({layer(KvFormat::f32)}, 4);
  compute(*kv, counted(16));
  const Pages before = pages_of(*kv);
  {
    KvExport slow(*kv);
    std::vector<KvNode> nodes = slow.take(1, kv->make_moves());
    EXPECT_EQ(nodes.size(), 1u);
    compute(*kv, counted(8, 500));  // evicts the two deepest
    kv->check_invariants();
    while (true) {
      std::vector<KvNode> more = slow.take(1, kv->make_moves());
      if (more.empty()) break;
      nodes.insert(nodes.end(), more.begin(), more.end());
    }
    ASSERT_EQ(nodes.size(), 4u);
    EXPECT_TRUE(nodes[3].pages[0].empty());
    for (const auto& [tokens, bytes] : pages_of(nodes)) EXPECT_EQ(before.at(tokens), bytes);
    EXPECT_EQ(kv->stats().held_pages, 0u);
  }
  kv->check_invariants();
  EXPECT_EQ(nodes_of(*kv).size(), 4u) << "what was only held for the export is forgotten";
}

TEST_F(Export, WhatIsPutIntoACacheIsFoundCachedAndOnTheRecord) {
  const auto from = make({layer(KvFormat::f32), layer(KvFormat::f32, 6)});
  compute(*from, counted(10));
  const auto to = make({layer(KvFormat::f32), layer(KvFormat::f32, 6)});
  KvImport import(*to);
  for (const KvNode& node : nodes_of(*from)) import.add(node, to->make_moves());
  EXPECT_EQ(to->lookup(counted(11)).tokens, 0u) << "nothing is found before all of it is there";
  const KvImport::Result result = import.commit();
  EXPECT_EQ(result.nodes, 3u);
  EXPECT_EQ(result.tokens, 10u);
  EXPECT_EQ(result.pages, 6u);
  EXPECT_EQ(to->lookup(counted(11)).tokens, 10u);
  EXPECT_EQ(pages_of(*to), pages_of(*from));
  EXPECT_EQ(to->events().count(KvEventKind::restored), 6u);
  EXPECT_EQ(to->stats().cached_pages, 6u);
  EXPECT_EQ(to->stats().held_pages, 0u);
  to->check_invariants();
}

TEST_F(Export, AnImportThatIsGivenUpLeavesNothing) {
  const auto from = make({layer(KvFormat::f32)});
  compute(*from, counted(10));
  const auto to = make({layer(KvFormat::f32)});
  {
    KvImport import(*to);
    for (const KvNode& node : nodes_of(*from)) import.add(node, to->make_moves());
  }
  EXPECT_EQ(to->stats().free_pages, 64u);
  EXPECT_EQ(nodes_of(*to).size(), 0u);
  to->check_invariants();
}

TEST_F(Export, AnImportTakesOnlyFreePagesAndThenLeavesOutTheRest) {
  const auto from = make({layer(KvFormat::f32)});
  compute(*from, counted(16, 100));  // used longer ago
  compute(*from, counted(16));
  const auto to = make({layer(KvFormat::f32)}, 7);
  compute(*to, counted(8, 900));
  KvImport import(*to);
  for (const KvNode& node : nodes_of(*from)) import.add(node, to->make_moves());
  const KvImport::Result result = import.commit();
  EXPECT_EQ(result.pages, 5u);
  EXPECT_EQ(result.nodes_left_out, 3u);
  EXPECT_EQ(result.tokens_left_out, 12u);
  EXPECT_EQ(to->lookup(counted(17)).tokens, 16u);
  EXPECT_EQ(to->lookup(counted(17, 100)).tokens, 4u);
  EXPECT_EQ(to->lookup(counted(9, 900)).tokens, 8u) << "nothing was evicted";
  EXPECT_EQ(to->events().count(KvEventKind::evicted), 0u);
  to->check_invariants();
}

TEST_F(Export, WhatIsThereAlreadyStaysAndOnlyWhatIsMissingIsFilled) {
  const auto from = make({layer(KvFormat::f32)});
  compute(*from, counted(14));
  const auto to = make({layer(KvFormat::f32)});
  compute(*to, counted(6));  // one full page, and two of the four tokens of the next
  const Pages own = pages_of(*to);
  for (int round = 0; round < 2; ++round) {
    KvImport import(*to);
    for (const KvNode& node : nodes_of(*from)) import.add(node, to->make_moves());
    EXPECT_EQ(import.commit().pages, round == 0 ? 3u : 0u);
    to->check_invariants();
  }
  Pages expected = pages_of(*from);
  for (const auto& [tokens, bytes] : own) expected[tokens] = bytes;
  EXPECT_EQ(pages_of(*to), expected);
  EXPECT_EQ(to->lookup(counted(15)).tokens, 14u);
}

TEST_F(Export, AShorterPagePutsNoRowsIntoALongerOne) {
  const std::vector<KvLayerShape> shapes = {layer(KvFormat::f32), layer(KvFormat::f32, 6)};
  const auto from = make(shapes), to = make(shapes);
  compute(*from, counted(2));
  compute(*to, counted(3));
  const Pages own = pages_of(*to);
  KvImport import(*to);
  for (const KvNode& node : nodes_of(*from)) import.add(node, to->make_moves());
  EXPECT_EQ(import.commit().pages, 0u) << "the longer page has the shorter one's rows";
  EXPECT_EQ(pages_of(*to), own);
  to->check_invariants();
}

TEST_F(Export, WhatIsRestoredIsEvictedFromTheOldestOn) {
  const auto from = make({layer(KvFormat::f32)});
  compute(*from, counted(8, 100));
  compute(*from, counted(8));
  const auto to = make({layer(KvFormat::f32)}, 4);
  KvImport import(*to);
  for (const KvNode& node : nodes_of(*from)) import.add(node, to->make_moves());
  EXPECT_EQ(import.commit().pages, 4u);
  compute(*to, counted(4, 900));
  EXPECT_EQ(to->lookup(counted(9)).tokens, 8u);
  EXPECT_EQ(to->lookup(counted(9, 100)).tokens, 4u);
  to->check_invariants();
}

TEST_F(Export, NothingIsPutIntoACacheThatSharesNothing) {
  const auto kv = make({layer(KvFormat::f32)}, 4, {.sharing = false});
  EXPECT_THROW(KvImport{*kv}, Error);
  kv->check_invariants();
}

}  // namespace
}  // namespace quire
