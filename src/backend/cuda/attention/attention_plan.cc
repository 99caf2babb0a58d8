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

// `most`: tokens of a unit.
void add_units(const AttentionRun& run, const AttentionShape& shape, uint32_t most, uint32_t splits_in_place,
               AttentionUnits& list) {
  for (uint32_t begin = 0; begin < run.tokens; begin += most) {
    const uint32_t tokens = std::min(most, run.tokens - begin), row = run.row + begin;
    const uint32_t first = first_visible(row, shape.window) / kSplitKeys;
    const uint32_t last = (row + tokens - 1) / kSplitKeys;
    const uint32_t splits = last - first + 1;
    const bool joins = splits_in_place > 1 && splits > 1 && row + tokens - last * kSplitKeys <= kFewKeys;
    const uint32_t first_unit = uint32_t(list.units.size()), units = splits - (joins ? 1 : 0);
    for (uint32_t unit = 0; unit < units; ++unit) {
      list.units.push_back({.token = run.token + begin,
                            .row = row,
                            .table = run.table,
                            .tokens = uint8_t(tokens),
                            .here = uint8_t(unit + 1 == units ? splits - unit : 1),
                            .units = uint8_t(splits <= splits_in_place ? units : 0),
                            .before = uint8_t(begin),
                            .split = first + unit,
                            .first_split = first,
                            .splits = splits,
                            .first_place = list.places});
    }
    list.places += splits;
    list.columns = std::max(list.columns, tokens * shape.group);
    if (splits > splits_in_place) list.merges.push_back(first_unit);
  }
}

uint32_t tiles_of(const AttentionRun& run, const AttentionShape& shape) {
  const uint32_t of_tile = tokens_of_tile(shape.group);
  return (run.tokens + of_tile - 1) / of_tile * shape.kv_heads;
}

uint32_t splits_of(const AttentionRun& run, uint32_t window) {
  const uint32_t first = first_visible(run.row, window) / kSplitKeys;
  return (run.row + run.tokens - 1) / kSplitKeys - first + 1;
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

AttentionPlan plan_attention(std::span<const AttentionRun> runs, const AttentionShape& shape,
                             Merging merging) {
  CHECK(shape.group >= 1 && shape.group <= kMostLatentGroup);
  AttentionPlan plan;
  const uint32_t of_unit = tokens_of_unit(shape.group), of_tile = tokens_of_tile(shape.group);
  const auto has_units = [&](const AttentionRun& run) { return run.tokens <= kMostDecodeItems * of_unit; };
  uint32_t columns = 0, tiles = 0, part_rows = 0;
  for (const AttentionRun& run : runs) {
    if (has_units(run)) {
      columns = std::max(columns, std::min(run.tokens, of_unit) * shape.group);
    } else {
      tiles += tiles_of(run, shape);
    }
  }
  const bool in_place = merging == Merging::in_place && runs.size() >= kManyRuns && columns <= kFewColumns;
  for (const AttentionRun& run : runs) {
    if (has_units(run)) {
      add_units(run, shape, of_unit, in_place ? kSplitsInPlace : 1, plan.few);
      continue;
    }
    const uint32_t splits = splits_of(run, shape.window);
    const uint32_t rows = tiles_of(run, shape) * splits * kPrefillRows;
    if (tiles <= kFewTiles && splits >= kManySplits && part_rows + rows <= kMostPartRows) {
      part_rows += rows;
      add_units(run, shape, of_tile, 1, plan.parts);
    } else {
      add_tiles(run, shape, plan.tiles);
    }
  }
  sort_tiles(plan.tiles, shape.window);
  return plan;
}

AttentionPlan plan_tiles(std::span<const AttentionRun> runs, const AttentionShape& shape) {
  CHECK(shape.group >= 1 && shape.group <= kMostLatentGroup);
  AttentionPlan plan;
  for (const AttentionRun& run : runs) add_tiles(run, shape, plan.tiles);
  sort_tiles(plan.tiles, shape.window);
  return plan;
}

size_t decode_partial_bytes(size_t places, const AttentionShape& shape, uint32_t columns, uint32_t head_dim) {
  return places * shape.kv_heads * columns * (head_dim + kPartialExtra) * sizeof(float);
}

}  // namespace quire::cuda
