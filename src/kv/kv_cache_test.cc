#include <cstring>
#include <set>

#include <gtest/gtest.h>

#include "kv/host_kv.h"

namespace quire {
namespace {

KvLayerShape layer(uint32_t window = 0) {
  return {.kv_heads = 2,
          .key_dim = 4,
          .value_dim = 6,
          .window = window,
          .key_format = KvFormat::f32,
          .value_format = KvFormat::f16};
}

HostKv make_kv(std::vector<KvLayerShape> layers, std::vector<uint32_t> pages, uint32_t page_tokens = 4) {
  return HostKv(make_kv_layout(layers, page_tokens), pages);
}

TEST(KvLayout, KnowsItsFormatsByName) {
  for (KvFormat format : {KvFormat::f32, KvFormat::f16, KvFormat::bf16})
    EXPECT_EQ(kv_format_from_name(name(format)), format);
  EXPECT_EQ(kv_format_from_name("q8_0"), std::nullopt);
  EXPECT_EQ(kv_row_bytes(KvFormat::bf16, 64), 128u);
}

TEST(KvLayout, PutsEveryRowOfAPageAtAPlaceOfItsOwn) {
  const KvLayout layout = make_kv_layout(std::vector{layer(), layer(8), layer()}, 4);
  ASSERT_EQ(layout.groups.size(), 2u);
  EXPECT_EQ(layout.groups[0].layers.size(), 2u);
  EXPECT_EQ(layout.places[2][0].group, 0u);
  EXPECT_EQ(layout.places[2][0].slot, 1u);
  for (const KvGroupLayout& group : layout.groups) {
    std::vector<int> touched(group.page_bytes, 0);
    for (const KvLayerLayout& l : group.layers) {
      for (uint32_t head = 0; head < 2; ++head) {
        for (uint32_t row = 0; row < group.page_tokens; ++row) {
          for (size_t b = 0; b < l.key_row_bytes; ++b) ++touched[l.key_offset(head, row) + b];
          for (size_t b = 0; b < l.value_row_bytes; ++b) ++touched[l.value_offset(head, row) + b];
        }
      }
    }
    for (int count : touched) EXPECT_EQ(count, 1);
  }
  // Two heads: 4 keys of 4 bytes and 6 values of 2 bytes each.
  EXPECT_EQ(layout.groups[1].bytes_per_token(), 2 * (4 * 4 + 6 * 2));
  EXPECT_EQ(layout.bytes_per_token(), 3 * 2 * (4 * 4 + 6 * 2));
}

TEST(KvLayout, ALayerThatSharesHasTheRowsOfItsSourceAndNoneOfItsOwn) {
  KvLayerShape sharing = layer(8);
  sharing.shares_with = 1;
  const KvLayout layout = make_kv_layout(std::vector{layer(), layer(8), sharing, layer()}, 4);
  ASSERT_EQ(layout.places.size(), 4u);
  EXPECT_EQ(layout.places[2][0].group, layout.places[1][0].group);
  EXPECT_EQ(layout.places[2][0].slot, layout.places[1][0].slot);
  EXPECT_EQ(layout.places[3][0].slot, 1u);
  const KvLayout without = make_kv_layout(std::vector{layer(), layer(8), layer()}, 4);
  EXPECT_EQ(layout.bytes_per_token(), without.bytes_per_token());
  EXPECT_EQ(layout.groups[1].cells(), without.groups[1].cells());
}

TEST(KvCache, TakesAPageOnlyWhenTheLastOneIsFull) {
  HostKv kv = make_kv({layer()}, {8});
  PageTable table = kv.make_table();
  ASSERT_TRUE(kv.reserve(table, 1));
  EXPECT_EQ(kv.stats().held_pages, 1u);
  ASSERT_TRUE(kv.reserve(table, 4));
  EXPECT_EQ(kv.stats().held_pages, 1u);
  ASSERT_TRUE(kv.reserve(table, 5));
  EXPECT_EQ(kv.stats().held_pages, 2u);
  kv.check_invariants();
}

TEST(KvCache, RefusesWhatDoesNotFitAndLeavesTheTableAsItWas) {
  HostKv kv = make_kv({layer(), layer(8)}, {4, 3});
  PageTable table = kv.make_table();
  ASSERT_TRUE(kv.reserve(table, 8));
  EXPECT_FALSE(kv.reserve(table, 16));  // the window group has three pages only
  EXPECT_EQ(table.reserved_tokens(), 8u);
  EXPECT_EQ(kv.stats().held_pages, 4u);
  EXPECT_TRUE(kv.reserve(table, 12));
  kv.check_invariants();
}

TEST(KvCache, ReturnsEveryPageWhenATableGoes) {
  HostKv kv = make_kv({layer(), layer(8)}, {8, 8});
  {
    PageTable first = kv.make_table();
    PageTable second = kv.make_table();
    ASSERT_TRUE(kv.reserve(first, 20));
    ASSERT_TRUE(kv.reserve(second, 7));
    EXPECT_EQ(kv.stats().held_pages, 2u * (5 + 2));
  }
  EXPECT_EQ(kv.stats().held_pages, 0u);
  EXPECT_EQ(kv.stats().peak_held_pages, 14u);
  kv.check_invariants();
}

TEST(KvCache, KeepsAPageAsLongAsACopyOfItsTableHoldsIt) {
  HostKv kv = make_kv({layer()}, {8});
  PageTable first = kv.make_table();
  ASSERT_TRUE(kv.reserve(first, 8));
  {
    const PageTable copy = first;
    EXPECT_EQ(kv.stats().held_pages, 2u);
    { PageTable gone = std::move(first); }
    EXPECT_EQ(kv.stats().held_pages, 2u);
  }
  EXPECT_EQ(kv.stats().held_pages, 0u);
  kv.check_invariants();
}

TEST(KvCache, TruncationGivesBackWholePagesAndTheyCanBeTakenAgain) {
  HostKv kv = make_kv({layer()}, {8});
  PageTable table = kv.make_table();
  ASSERT_TRUE(kv.reserve(table, 17));
  EXPECT_EQ(kv.stats().held_pages, 5u);
  kv.truncate(table, 9);
  EXPECT_EQ(kv.stats().held_pages, 3u);
  kv.truncate(table, 12);  // longer than it is: nothing to give
  EXPECT_EQ(table.reserved_tokens(), 9u);
  ASSERT_TRUE(kv.reserve(table, 32));
  EXPECT_EQ(kv.stats().held_pages, 8u);
  kv.check_invariants();
}

TEST(KvCache, WindowLayersFreePagesBehindTheWindowAndOnlyThere) {
  HostKv kv = make_kv({layer(), layer(8)}, {16, 16});
  PageTable table = kv.make_table();
  for (uint32_t next = 0; next < 64; ++next) {
    ASSERT_TRUE(kv.reserve(table, next + 1));
    kv.release_behind_window(table, next);
    for (uint32_t position = 0; position <= next; ++position) {
      EXPECT_TRUE(table.pages(0)[position / 4].has_value());
      const bool visible = next - position < 8;
      if (visible) {
        EXPECT_TRUE(table.pages(1)[position / 4].has_value()) << position << " from " << next;
      }
    }
    EXPECT_LE(kv.stats().held_pages, (next / 4 + 1) + 3);
  }
  kv.check_invariants();
}

TEST(KvCache, PagesForAWindowDoNotGrowWithTheContext) {
  const KvLayout layout = make_kv_layout(std::vector{layer(), layer(8)}, 4);
  EXPECT_EQ(pages_for(layout, 1000, 4, 2), (std::vector<uint32_t>{500, 8}));
  EXPECT_EQ(pages_for(layout, 8, 4, 1), (std::vector<uint32_t>{2, 2}));
}

TEST(KvCache, AViewFindsTheRowsOfEachRunInItsOwnPages) {
  HostKv kv = make_kv({layer(), layer(8)}, {8, 8});
  PageTable first = kv.make_table();
  PageTable second = kv.make_table();
  ASSERT_TRUE(kv.reserve(first, 6));
  ASSERT_TRUE(kv.reserve(second, 6));
  KvTables flat;
  const PageTable* tables[] = {&first, &second};
  const std::vector<KvGroupView> groups = kv.view(tables, flat);
  std::set<const std::byte*> rows;
  for (const KvGroupView& group : groups) {
    for (const KvLayerLayout& l : group.layout->layers) {
      const KvView view{&group, &l};
      for (uint32_t run = 0; run < 2; ++run) {
        for (uint32_t head = 0; head < 2; ++head) {
          for (uint32_t position = 0; position < 6; ++position) {
            rows.insert(view.key_row(run, head, position));
            rows.insert(view.value_row(run, head, position));
          }
        }
      }
    }
  }
  EXPECT_EQ(rows.size(), 2u * 2 * 2 * 6 * 2);
}

}  // namespace
}  // namespace quire
