#include "backend/cuda/attention/attention_plan.h"

#include <algorithm>

#include "base/check.h"

namespace quire::cuda {
namespace {

void add_tiles(const AttentionRun& run, const AttentionShape& shape, std::vector<PrefillTile>& tiles) {
  const uint32_t most = tokens_of_tile(shape.group);
  for (uint32_t begin = 0; begin < run.tokens; begin += most) {
    for (uint32_t head = 0; head < shape.kv_heads; ++head) {
      tiles.push_back({.token = run.token + begin,
                       .tokens = std::min(most, run.tokens - begin),
                       .row = run.row + begin,
                       .table = run.table,
                       .kv_head = head,
                       .unused = {}});
    }
  }
}

void add_units(const AttentionRun& run, const AttentionShape& shape, AttentionPlan& plan) {
  const uint32_t most = tokens_of_unit(shape.group);
  for (uint32_t begin = 0; begin < run.tokens; begin += most) {
    const uint32_t tokens = std::min(most, run.tokens - begin), row = run.row + begin;
    const uint32_t first = first_visible(row, shape.window) / kSplitKeys;
    const uint32_t last = (row + tokens - 1) / kSplitKeys;
    const uint32_t place = uint32_t(plan.units.size());
    for (uint32_t split = first; split <= last; ++split) {
      plan.units.push_back({.token = run.token + begin,
                            .tokens = tokens,
                            .row = row,
                            .table = run.table,
                            .split = split,
                            .first_split = first,
                            .splits = last - first + 1,
                            .first_place = place});
    }
    if (last > first) plan.merges.push_back(place);
    plan.decode_columns = std::max(plan.decode_columns, tokens * shape.group);
  }
}

// The longest first: no multiprocessor should begin one when the others are done.
void sort_tiles(std::vector<PrefillTile>& tiles, uint32_t window) {
  const auto keys = [&](const PrefillTile& tile) {
    return tile.row + tile.tokens - first_visible(tile.row, window);
  };
  std::stable_sort(tiles.begin(), tiles.end(),
                   [&](const PrefillTile& a, const PrefillTile& b) { return keys(a) > keys(b); });
}

}  // namespace

AttentionPlan plan_attention(std::span<const AttentionRun> runs, const AttentionShape& shape) {
  CHECK(shape.group >= 1 && shape.group <= kMostGroup);
  AttentionPlan plan;
  for (const AttentionRun& run : runs) {
    if (run.tokens <= kMostDecodeItems * tokens_of_unit(shape.group)) {
      add_units(run, shape, plan);
    } else {
      add_tiles(run, shape, plan.tiles);
    }
  }
  sort_tiles(plan.tiles, shape.window);
  return plan;
}

AttentionPlan plan_tiles(std::span<const AttentionRun> runs, const AttentionShape& shape) {
  CHECK(shape.group >= 1 && shape.group <= kMostGroup);
  AttentionPlan plan;
  for (const AttentionRun& run : runs) add_tiles(run, shape, plan.tiles);
  sort_tiles(plan.tiles, shape.window);
  return plan;
}

size_t decode_partial_bytes(size_t units, const AttentionShape& shape, uint32_t columns, uint32_t head_dim) {
  return units * shape.kv_heads * columns * (head_dim + kPartialExtra) * sizeof(float);
}

}  // namespace quire::cuda
