#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "backend/cuda/attention/attention_rule.h"

// Who computes which rows of a step's attention. What is planned never shows in the results, only in the time.

namespace quire::cuda {

// Consecutive tokens of one sequence.
struct AttentionRun {
  uint32_t token;  // the first, in the step
  uint32_t tokens;
  uint32_t row;    // where the first token's key is in its sequence
  uint32_t table;  // where the sequence's page table begins
};

// For the kernel of many tokens: some tokens of a run, all query heads of one KV head.
struct PrefillTile {
  uint32_t token, tokens, row, table, kv_head;
  uint32_t unused[3];
};

// For the kernel of few tokens: a split of the context of some tokens of a run, or two, in turn for every KV head. The units of
// the same tokens are beside each other, and whoever computes the last of them merges all splits, or where they are many a kernel
// that follows, which divides that among all multiprocessors.
struct DecodeUnit {
  uint32_t token, row, table;
  uint8_t tokens;  // 0: nothing to do
  uint8_t here;    // splits of this unit: 1, or 2 where splits are merged in place
  uint8_t units;   // of these tokens, if the last of them merges their splits; 0: another kernel does
  uint8_t before;  // tokens of the run before these: their rows are as new
  uint32_t split, first_split, splits;
  uint32_t first_place;  // of the first split's partial sums, which lie beside each other
};

// Units of tokens that are computed alike.
struct AttentionUnits {
  std::vector<DecodeUnit> units;
  std::vector<uint32_t> merges;  // the first unit of all that the kernel that follows merges
  uint32_t places = 0;           // for partial sums: the splits of all units
  uint32_t columns = 0;          // the most tokens * group of a unit
};

struct AttentionPlan {
  std::vector<PrefillTile> tiles;
  AttentionUnits few;    // tokens: kDecodeColumns at most, or a token's heads
  AttentionUnits parts;  // of tiles that would leave most multiprocessors without work: kPrefillRows at most
};

inline constexpr uint32_t kPrefillRows = 128;   // of PrefillTile: tokens * group
inline constexpr uint32_t kDecodeColumns = 16;  // of DecodeUnit, at most, if a token has no more
inline constexpr uint32_t kMostGroup = 16;      // query heads of a KV head, where each has keys of its own
inline constexpr uint32_t kMostLatentGroup = kPrefillRows;  // where all have the same

QUIRE_BOTH constexpr uint32_t tokens_of_tile(uint32_t group) {
  return kPrefillRows / group;
}
QUIRE_BOTH constexpr uint32_t tokens_of_unit(uint32_t group) {
  return group < kDecodeColumns ? kDecodeColumns / group : 1;
}

// Where many runs keep all multiprocessors busy, and no unit has more columns than a few, which leaves registers for it, up to so
// many splits are merged in place, and a last split of few keys is not worth a unit of its own.
inline constexpr uint32_t kManyRuns = 17, kFewColumns = 8, kSplitsInPlace = 2, kFewKeys = kBlockKeys;

// Of runs up to so many units long, the context is read once by each of them and divided among all multiprocessors; longer
// ones are worth a tile.
inline constexpr uint32_t kMostDecodeItems = 4;

// So few tiles are divided by the splits of their context, if these are some.
inline constexpr uint32_t kFewTiles = 32, kManySplits = 4;
// Of such parts, all KV heads together: their sums need memory. (engine/memory_plan.cc counts on both.)
inline constexpr uint32_t kMostPartRows = uint32_t(1) << 18;
static_assert(kMostDecodeItems * kDecodeColumns <= UINT8_MAX);  // DecodeUnit::before

// The query heads of a KV head. Rows of a tile and columns of a unit are numbered token by token; their token is found by a
// multiplication, which is exact for so few.
struct HeadGroup {
  uint32_t size = 1;
  uint32_t inverse = 65537;

  HeadGroup() = default;
  explicit HeadGroup(uint32_t heads) : size(heads), inverse(65536 / heads + 1) {}
  QUIRE_BOTH uint32_t token_of(uint32_t row) const { return row * inverse >> 16; }
  QUIRE_BOTH uint32_t head_of(uint32_t row) const { return row - token_of(row) * size; }
};

struct AttentionShape {
  uint32_t kv_heads;
  uint32_t group;   // query heads of a KV head
  uint32_t window;  // 0: none
};

// A unit leaves behind for each column its values, then reference and sum, filled up to whole vectors.
inline constexpr uint32_t kPartialExtra = 4;

// Who can merge splits: a kernel of its own alone, or the unit that comes last too.
enum class Merging : uint8_t { apart, in_place };
AttentionPlan plan_attention(std::span<const AttentionRun> runs, const AttentionShape& shape,
                             Merging merging = Merging::in_place);

// The same with tiles alone, for kernels and tests that want them.
AttentionPlan plan_tiles(std::span<const AttentionRun> runs, const AttentionShape& shape);

// Bytes of a plan's partial sums: each split's values, reference and sum by column.
size_t decode_partial_bytes(size_t places, const AttentionShape& shape, uint32_t columns, uint32_t head_dim);

}  // namespace quire::cuda
