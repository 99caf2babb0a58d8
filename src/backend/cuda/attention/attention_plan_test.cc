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
  for (uint32_t group = 1; group <= kMostLatentGroup; group += group < kMostGroup ? 1 : 7) {
    const AttentionShape shape{.kv_heads = 3, .group = group, .window = 0};
    const AttentionPlan plan = plan_attention(ragged_runs(), shape);
    std::map<std::pair<uint32_t, uint32_t>, int> times;  // (token, KV head)
    for (const PrefillTile& tile : plan.tiles) {
      EXPECT_LE(tile.tokens * group, kPrefillRows);
      for (uint32_t t = 0; t < tile.tokens; ++t) ++times[{tile.token + t, tile.kv_head}];
    }
    for (const AttentionUnits* list : {&plan.few, &plan.parts}) {
      for (const DecodeUnit& unit : list->units) {
        EXPECT_LE(unit.tokens * group, list->columns);
        if (unit.split != unit.first_split) continue;
        for (uint32_t t = 0; t < unit.tokens; ++t) {
          for (uint32_t head = 0; head < shape.kv_heads; ++head) ++times[{unit.token + t, head}];
        }
      }
    }
    EXPECT_LE(plan.few.columns, std::max(kDecodeColumns, group));
    EXPECT_LE(plan.parts.columns, kPrefillRows);
    EXPECT_EQ(times.size(), 1306u * shape.kv_heads);
    EXPECT_TRUE(std::ranges::all_of(times, [](const auto& entry) { return entry.second == 1; }));
  }
}

// What is planned for some equal runs.
struct EqualRuns {
  uint32_t count, tokens;
  bool merges_in_place() const { return count >= kManyRuns && tokens == 1; }
};

void expect_all_splits(const EqualRuns& equal, uint32_t window) {
  SCOPED_TRACE(testing::Message() << equal.count << " runs of " << equal.tokens << ", window " << window);
  std::vector<AttentionRun> runs;
  for (uint32_t i = 0; i < equal.count; ++i)  // the last split has one key
    runs.push_back(
        {.token = i * equal.tokens, .tokens = equal.tokens, .row = 4097 - equal.tokens, .table = 0});
  const AttentionUnits plan = plan_attention(runs, {.kv_heads = 2, .group = 4, .window = window}).few;
  std::set<uint32_t> wanted, planned;
  for (uint32_t row = runs[0].row; row < runs[0].row + equal.tokens; ++row) {
    for (uint32_t key = first_visible(row, window); key <= row; ++key) wanted.insert(key / kSplitKeys);
  }
  const bool joins = equal.merges_in_place() && wanted.size() > 1;
  const bool in_place = wanted.size() <= (equal.merges_in_place() ? kSplitsInPlace : 1);
  const size_t units = wanted.size() - (joins ? 1 : 0);
  ASSERT_EQ(plan.units.size(), units * equal.count);
  for (size_t u = 0; u < units; ++u) {
    const DecodeUnit& unit = plan.units[u];
    EXPECT_EQ(unit.splits, wanted.size());
    EXPECT_EQ(unit.units, in_place ? units : 0);
    EXPECT_EQ(unit.first_place, 0u);
    EXPECT_EQ(unit.here, joins && u + 1 == units ? 2 : 1);
    for (uint32_t split = unit.split; split < unit.split + unit.here; ++split) {
      const KeySpan keys = keys_of_split(split, unit.row, unit.tokens, window);
      EXPECT_LT(keys.begin, keys.end);
      EXPECT_EQ(keys.begin % kBlockKeys, 0u);
      EXPECT_LE(keys.end, (split + 1) * kSplitKeys);
      EXPECT_TRUE(planned.insert(split).second);
    }
  }
  EXPECT_EQ(planned, wanted);
  EXPECT_EQ(plan.merges.size(), in_place ? 0 : equal.count);
  EXPECT_EQ(plan.places, wanted.size() * equal.count);
  EXPECT_EQ(plan.units.back().first_place, wanted.size() * (equal.count - 1));
}

TEST(AttentionPlan, ComputesEverySplitThatSomeTokenSeesOnce) {
  for (const uint32_t window : {0u, 1u, 100u, 512u, 2000u}) {
    for (const uint32_t count : {1u, kManyRuns}) {
      for (const uint32_t tokens : {3u, 1u}) expect_all_splits({count, tokens}, window);
    }
  }
}

TEST(AttentionPlan, LeavesEverySplitToTheKernelThatMergesWhereUnitsCannot) {
  std::vector<AttentionRun> runs;
  for (uint32_t i = 0; i < kManyRuns; ++i) runs.push_back({.token = i, .tokens = 1, .row = 600, .table = 0});
  const AttentionShape shape{.kv_heads = 2, .group = 4, .window = 0};
  ASSERT_TRUE(plan_attention(runs, shape).few.merges.empty());
  const AttentionUnits apart = plan_attention(runs, shape, Merging::apart).few;
  EXPECT_EQ(apart.merges.size(), runs.size());
  EXPECT_EQ(apart.units.size(), 2 * runs.size());
  for (const DecodeUnit& unit : apart.units) EXPECT_EQ(unit.here, 1u);
}

// Whoever reads keys before the kernel that writes this step's has ended must know which are this step's.
TEST(AttentionPlan, KnowsOfEveryUnitHowManyTokensOfItsRunAreBeforeIt) {
  for (const uint32_t group : {1u, 3u, 4u, 8u, 16u}) {
    const uint32_t most = kMostDecodeItems * tokens_of_unit(group);
    for (uint32_t tokens = 1; tokens <= most; ++tokens) {
      const AttentionRun run{.token = 5, .tokens = tokens, .row = 1020, .table = 0};
      const AttentionUnits plan = plan_attention({&run, 1}, {.kv_heads = 2, .group = group, .window = 0}).few;
      ASSERT_FALSE(plan.units.empty());
      for (const DecodeUnit& unit : plan.units) {
        EXPECT_EQ(unit.row - unit.before, run.row);
        EXPECT_EQ(unit.token - unit.before, run.token);
      }
    }
  }
}

TEST(AttentionPlan, DividesFewTilesBySplitsWhereContextsAreLong) {
  const AttentionShape shape{.kv_heads = 8, .group = 4, .window = 0};
  const auto plan_of = [&](uint32_t tokens, uint32_t row, uint32_t window) {
    const AttentionRun run{.token = 0, .tokens = tokens, .row = row, .table = 0};
    return plan_attention({&run, 1}, {.kv_heads = 8, .group = 4, .window = window});
  };
  const AttentionPlan page = plan_of(32, 32736, 0);  // a prompt of which all pages but the last one are there
  EXPECT_TRUE(page.tiles.empty());
  EXPECT_EQ(page.parts.units.size(), 32768u / kSplitKeys);
  EXPECT_EQ(page.parts.columns, 128u);
  EXPECT_EQ(page.parts.merges, std::vector<uint32_t>{0});
  EXPECT_TRUE(plan_of(64, 32704, 0).tiles.empty());
  EXPECT_EQ(plan_of(512, 32256, 0).tiles.size(), 16u * shape.kv_heads) << "enough for all multiprocessors";
  EXPECT_EQ(plan_of(32, 500, 0).tiles.size(), shape.kv_heads) << "a short context";
  EXPECT_EQ(plan_of(100, 1 << 20, 0).tiles.size(), 4u * shape.kv_heads)
      << "more sums than there is memory for";
  EXPECT_EQ(plan_of(32, 32736, 700).tiles.size(), shape.kv_heads) << "a window";
}

TEST(AttentionPlan, LetsTheLongestTilesBegin) {
  for (const uint32_t window : {0u, 256u}) {
    const AttentionPlan plan = plan_tiles(ragged_runs(), {.kv_heads = 2, .group = 4, .window = window});
    const auto keys = [&](const PrefillTile& tile) {
      return tile.row + tile.tokens - first_visible(tile.row, window);
    };
    ASSERT_FALSE(plan.tiles.empty());
    EXPECT_TRUE(std::ranges::is_sorted(plan.tiles, std::greater(), keys));
  }
}

TEST(HeadGroup, KnowsTheTokenAndHeadOfEveryRow) {
  for (uint32_t size = 1; size <= kMostLatentGroup; ++size) {
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
