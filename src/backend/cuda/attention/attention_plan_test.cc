#include "backend/cuda/attention/attention_plan.h"

#include <algorithm>
#include <map>
#include <set>
#include <tuple>

#include <gtest/gtest.h>

namespace quire::cuda {
namespace {

std::vector<AttentionRun> ragged_runs() {
  return {{0, 1, 5000, 0}, {1, 300, 0, 200}, {301, 4, 511, 250}, {305, 1, 0, 300}, {306, 1000, 2048, 301}};
}

TEST(AttentionPlan, GivesEveryTokenAndHeadToOneTileOrOneUnit) {
  for (uint32_t group = 1; group <= kMostGroup; ++group) {
    const AttentionShape shape{.kv_heads = 3, .group = group, .window = 0};
    const AttentionPlan plan = plan_attention(ragged_runs(), shape);
    std::map<std::pair<uint32_t, uint32_t>, int> times;  // (token, KV head)
    for (const PrefillTile& tile : plan.tiles) {
      EXPECT_LE(tile.tokens * group, kPrefillRows);
      for (uint32_t t = 0; t < tile.tokens; ++t) ++times[{tile.token + t, tile.kv_head}];
    }
    for (const DecodeUnit& unit : plan.units) {
      EXPECT_LE(unit.tokens * group, plan.decode_columns);
      if (unit.split != unit.first_split) continue;
      for (uint32_t t = 0; t < unit.tokens; ++t) {
        for (uint32_t head = 0; head < shape.kv_heads; ++head) ++times[{unit.token + t, head}];
      }
    }
    EXPECT_LE(plan.decode_columns, kDecodeColumns);
    EXPECT_EQ(times.size(), 1306u * shape.kv_heads);
    EXPECT_TRUE(std::ranges::all_of(times, [](const auto& entry) { return entry.second == 1; }));
  }
}

TEST(AttentionPlan, HasAUnitForEverySplitThatSomeTokenSees) {
  for (const uint32_t window : {0u, 1u, 100u, 512u, 2000u}) {
    const AttentionShape shape{.kv_heads = 2, .group = 4, .window = window};
    const AttentionRun run{.token = 7, .tokens = 3, .row = 4095, .table = 0};
    const AttentionPlan plan = plan_attention({&run, 1}, shape);
    std::set<uint32_t> wanted;
    for (uint32_t row = run.row; row < run.row + run.tokens; ++row) {
      for (uint32_t key = first_visible(row, window); key <= row; ++key) wanted.insert(key / kSplitKeys);
    }
    std::set<uint32_t> planned;
    for (const DecodeUnit& unit : plan.units) {
      planned.insert(unit.split);
      EXPECT_EQ(unit.splits, wanted.size());
      EXPECT_EQ(unit.first_place + unit.split - unit.first_split, size_t(&unit - plan.units.data()));
      const KeySpan keys = keys_of_split(unit.split, unit.row, unit.tokens, window);
      EXPECT_LT(keys.begin, keys.end);
      EXPECT_EQ(keys.begin % kBlockKeys, 0u);
      EXPECT_LE(keys.end, (unit.split + 1) * kSplitKeys);
    }
    EXPECT_EQ(planned, wanted);
    EXPECT_EQ(plan.merges, wanted.size() > 1 ? std::vector<uint32_t>{0} : std::vector<uint32_t>{});
  }
}

TEST(AttentionPlan, LetsTheLongestTilesBegin) {
  for (const uint32_t window : {0u, 256u}) {
    const AttentionPlan plan = plan_attention(ragged_runs(), {.kv_heads = 2, .group = 4, .window = window});
    const auto keys = [&](const PrefillTile& tile) {
      return tile.row + tile.tokens - first_visible(tile.row, window);
    };
    ASSERT_FALSE(plan.tiles.empty());
    EXPECT_TRUE(std::ranges::is_sorted(plan.tiles, std::greater(), keys));
  }
}

TEST(HeadGroup, KnowsTheTokenAndHeadOfEveryRow) {
  for (uint32_t size = 1; size <= kMostGroup; ++size) {
    const HeadGroup group(size);
    for (uint32_t row = 0; row < kPrefillRows; ++row) {
      EXPECT_EQ(group.token_of(row), row / size);
      EXPECT_EQ(group.head_of(row), row % size);
    }
  }
}

TEST(AttentionPlan, NeedsNoMoreRoomForPartialSumsThanItsUnitsLeave) {
  const AttentionShape shape{.kv_heads = 8, .group = 4, .window = 0};
  EXPECT_EQ(decode_partial_bytes(10, shape, 4, 128), size_t(10) * 8 * 4 * 132 * 4);
}

}  // namespace
}  // namespace quire::cuda
