#pragma once

#include <cstdint>

#include "backend/cuda/attention/attention.h"
#include "backend/cuda/matmul/ptx_hopper.cuh"

// Attention of many tokens of a run, on Hopper. A block of threads takes one tile after the other: up to 128 rows of
// queries, which are the query heads of one KV head for some tokens. One warp fetches the tile's queries, and keys and values
// in blocks of 128 rows; two warpgroups compute 64 rows each (attention_prefill.cuh).

namespace quire::cuda {

struct PrefillArgs {
  const uint32_t* page_ids;
  const PrefillTile* tiles;
  uint32_t tile_count;
  uint32_t* counter;  // of tiles that were taken
  uint32_t heads;
  HeadGroup group;
  uint32_t window;
  uint32_t page_tokens;
  uint32_t box_rows;  // of a copy: divides page_tokens and kBlockKeys
  PagedRows rows;
  KvFormat key_format, value_format;
  float value_units;  // what values are multiplied with at the end: their codes' units
  ScoreScale scale;
  const float* sinks;
  uint8_t* out;
  uint32_t out_tokens;
  float* out_f32;
};

inline constexpr int kPrefillThreads = 384;
inline constexpr int kPrefillWarps = 8;  // that compute

template <int kHeadDim>
struct PrefillLayout {
  static constexpr int kHalves = kHeadDim / 64;  // of a row: copies are 128 bytes wide
  static constexpr uint32_t kHalfBytes = 128 * 128;
  static constexpr uint32_t kBlockBytes = kHalves * kHalfBytes;  // 128 rows of queries, keys or values
  static constexpr int kStages = 256 / kHeadDim;
  static constexpr uint32_t kKeys = kBlockBytes;
  static constexpr uint32_t kValues = kKeys + kStages * kBlockBytes;
  static constexpr uint32_t kTotals = kValues + kStages * kBlockBytes;  // f32, of splits that are done
  static constexpr uint32_t kBarriers = kTotals + kPrefillRows * kHeadDim * 4;
  static constexpr uint32_t kTileSlots = kBarriers + (2 + 4 * kStages + 4) * 8;
  static constexpr uint32_t kKeyFactors = kTileSlots + 2 * sizeof(PrefillTile);  // f16, [stages, 128]
  static constexpr uint32_t kValueFactors = kKeyFactors + kStages * kBlockKeys * 2;
  static constexpr uint32_t kSharedBytes =
      kValueFactors + kStages * kBlockKeys * 2 + 1024;  // to begin at a multiple of 1024
  static_assert(kSharedBytes <= 232'448, "a block fits a multiprocessor");
};

// The barriers of a block of threads: full is for those who compute, empty for the warp that fetches.
template <int kHeadDim>
struct PrefillShared {
  using Layout = PrefillLayout<kHeadDim>;
  uint32_t base;
  uint8_t* memory;

  __device__ __forceinline__ uint32_t queries() const { return base; }
  __device__ __forceinline__ uint32_t keys(int stage) const {
    return base + Layout::kKeys + stage * Layout::kBlockBytes;
  }
  __device__ __forceinline__ uint32_t values(int stage) const {
    return base + Layout::kValues + stage * Layout::kBlockBytes;
  }
  __device__ __forceinline__ uint32_t barrier(int i) const { return base + Layout::kBarriers + 8 * i; }
  __device__ __forceinline__ uint32_t queries_full() const { return barrier(0); }
  __device__ __forceinline__ uint32_t queries_empty() const { return barrier(1); }
  __device__ __forceinline__ uint32_t keys_full(int stage) const { return barrier(2 + stage); }
  __device__ __forceinline__ uint32_t keys_empty(int stage) const {
    return keys_full(Layout::kStages + stage);
  }
  __device__ __forceinline__ uint32_t values_full(int stage) const {
    return keys_full(2 * Layout::kStages + stage);
  }
  __device__ __forceinline__ uint32_t values_empty(int stage) const {
    return keys_full(3 * Layout::kStages + stage);
  }
  __device__ __forceinline__ uint32_t slot_full(int slot) const {
    return keys_full(4 * Layout::kStages + slot);
  }
  __device__ __forceinline__ uint32_t slot_empty(int slot) const { return slot_full(2 + slot); }
  // The tiles that come next, or one without tokens: two places, so that it is known before the one before is done.
  __device__ __forceinline__ PrefillTile* slots() const {
    return reinterpret_cast<PrefillTile*>(memory + Layout::kTileSlots);
  }

  // The scales of a block's rows.
  __device__ __forceinline__ uint16_t* key_factors(int stage) const {
    return reinterpret_cast<uint16_t*>(memory + Layout::kKeyFactors) + stage * kBlockKeys;
  }
  __device__ __forceinline__ uint16_t* value_factors(int stage) const {
    return reinterpret_cast<uint16_t*>(memory + Layout::kValueFactors) + stage * kBlockKeys;
  }

  // `writers`: who arrives when a block of keys or values is there.
  __device__ __forceinline__ void init(uint32_t writers) const {
    ptx::init_barrier(queries_full(), 1);
    ptx::init_barrier(queries_empty(), kPrefillWarps);
    for (int i = 0; i < Layout::kStages; ++i) {
      ptx::init_barrier(keys_full(i), writers);
      ptx::init_barrier(keys_empty(i), kPrefillWarps);
      ptx::init_barrier(values_full(i), writers);
      ptx::init_barrier(values_empty(i), kPrefillWarps);
    }
    for (int i = 0; i < 2; ++i) {
      ptx::init_barrier(slot_full(i), 1);
      ptx::init_barrier(slot_empty(i), 32 * kPrefillWarps);
    }
    ptx::publish_barriers();
  }
};

// A stage of a ring, and the parity of the phase that it is in.
template <int kStages>
struct StagePlace {
  int index = 0;
  uint32_t parity = 0;

  __device__ __forceinline__ void advance() {
    if (++index == kStages) {
      index = 0;
      parity ^= 1;
    }
  }
};

// The blocks of keys that a tile's tokens see.
struct BlockSpan {
  uint32_t begin, end;
};
__device__ __forceinline__ BlockSpan blocks_of(const PrefillTile& tile, uint32_t window) {
  return {first_visible(tile.row, window) / kBlockKeys,
          (tile.row + tile.tokens + kBlockKeys - 1) / kBlockKeys};
}

// What fetching has in common, whatever the format of the pages: tiles and their queries, by one warp.
template <int kHeadDim>
struct PrefillTiles {
  using Layout = PrefillLayout<kHeadDim>;

  const CUtensorMap* queries;
  const PrefillArgs& args;
  const PrefillShared<kHeadDim> shared;
  const uint32_t lane = threadIdx.x % 32;

  __device__ __forceinline__ void fetch_queries(const PrefillTile& tile, uint32_t number) const {
    ptx::wait_barrier(shared.queries_empty(), (number & 1) ^ 1);
    const uint32_t rows = tokens_of_tile(args.group.size) * args.group.size;
    if (lane == 0) ptx::arrive_expecting(shared.queries_full(), Layout::kHalves * rows * 128);
    __syncwarp();
    if (lane < Layout::kHalves)
      ptx::copy_box(shared.queries() + lane * Layout::kHalfBytes, queries, int(lane * 64), 0,
                    int(tile.kv_head), int(tile.token), shared.queries_full());
  }

  // The first tile of a block of threads is that of its number; then who is free takes the next. Every block takes one too many,
  // and the counter is back at 0.
  __device__ __forceinline__ uint32_t take(uint32_t number) const {
    if (number == 0) return blockIdx.x;
    uint32_t taken = 0;
    if (lane == 0) taken = gridDim.x + atomicInc(args.counter, args.tile_count - 1);
    return __shfl_sync(~0u, taken, 0);
  }

  // Takes a tile and puts it into its slot, for all to see; one without tokens is the end.
  __device__ __forceinline__ void publish(uint32_t number) const {
    const int slot = int(number & 1);
    const uint32_t index = take(number);
    ptx::wait_barrier(shared.slot_empty(slot), (number >> 1 & 1) ^ 1);
    if (lane == 0) {
      shared.slots()[slot] = index < args.tile_count ? args.tiles[index] : PrefillTile{};
      ptx::arrive(shared.slot_full(slot));
    }
    __syncwarp();
  }

  // The page of a key; behind the end, and where it was freed, the last one.
  __device__ __forceinline__ uint32_t page_of(const PrefillTile& tile, uint32_t key) const {
    const uint32_t last = (tile.row + tile.tokens - 1) / args.page_tokens;
    const uint32_t page = args.page_ids[tile.table + min(key / args.page_tokens, last)];
    return page == kNoPage ? args.page_ids[tile.table + last] : page;
  }
};

// The warp that fetches, tile after tile.
template <int kHeadDim>
struct PrefillFetch {
  using Layout = PrefillLayout<kHeadDim>;

  const CUtensorMap *keys, *values;
  const PrefillTiles<kHeadDim> tiles;
  const PrefillArgs& args = tiles.args;
  const PrefillShared<kHeadDim> shared = tiles.shared;
  const uint32_t lane = threadIdx.x % 32;
  const uint32_t boxes = kBlockKeys / args.box_rows;  // of a block; a lane has one box of one half
  const uint32_t half = lane / boxes, box = lane % boxes;
  const bool copies = lane < boxes * Layout::kHalves;
  const uint32_t place = half * Layout::kHalfBytes + box * args.box_rows * 128;
  StagePlace<Layout::kStages> stage = {};

  __device__ __forceinline__ void fetch(const CUtensorMap* rows, uint32_t to, uint32_t full, uint32_t row,
                                        uint32_t head, uint32_t page) const {
    if (lane == 0) ptx::arrive_expecting(full, Layout::kBlockBytes);
    __syncwarp();
    if (copies) ptx::copy_box(to + place, rows, int(half * 64), int(row), int(head), int(page), full);
  }

  __device__ __forceinline__ void fetch_tile(const PrefillTile& tile, uint32_t number) {
    const BlockSpan blocks = blocks_of(tile, args.window);
    const auto page_of = [&](uint32_t block) {
      return tiles.page_of(tile, block * kBlockKeys + box * args.box_rows);
    };
    uint32_t next_page = page_of(blocks.begin);
    for (uint32_t block = blocks.begin; block < blocks.end; ++block, stage.advance()) {
      const uint32_t page = next_page, row = (block * kBlockKeys + box * args.box_rows) % args.page_tokens;
      next_page = page_of(block + 1);
      ptx::wait_barrier(shared.keys_empty(stage.index), stage.parity ^ 1);
      fetch(keys, shared.keys(stage.index), shared.keys_full(stage.index), row, tile.kv_head, page);
      if (block == blocks.begin) tiles.fetch_queries(tile, number);
      ptx::wait_barrier(shared.values_empty(stage.index), stage.parity ^ 1);
      fetch(values, shared.values(stage.index), shared.values_full(stage.index), row, tile.kv_head, page);
    }
  }

  __device__ __forceinline__ void run() {
    for (uint32_t number = 0;; ++number) {
      tiles.publish(number);
      const PrefillTile tile = shared.slots()[number & 1];
      if (tile.tokens == 0) return;
      fetch_tile(tile, number);
    }
  }
};

}  // namespace quire::cuda
