#pragma once

#include <cstdint>

#include "backend/cuda/attention/attention.h"
#include "backend/cuda/matmul/ptx_hopper.cuh"

// Attention of few tokens of a run: memory is read once, at its full speed. Rows of 16-bit numbers come in swizzled halves by
// tensor maps; codes as they lie in their page, and are made numbers of where they are multiplied (attention_decode_sides.cuh). A block of threads takes one unit after the
// other: one split of one sequence and KV head. A warp fetches keys and values in chunks of 32 rows into two rings; four warps
// compute. Keys, and dimensions of values, are the rows of their products; the columns are the unit's query heads.
//
//   keys of chunk w        on warp w: scores, masked; their largest meet in shared memory
//   shares                 to shared memory, rounded for the products and unrounded for the sums
//   a quarter of the values' dimensions on each warp

namespace quire::cuda {

struct DecodeArgs {
  const uint16_t* query;
  const uint32_t* page_ids;
  const DecodeUnit* units;
  uint32_t unit_count;
  const uint32_t* merges;
  uint32_t heads, kv_heads;
  HeadGroup group;
  uint32_t columns;  // of a place among the partial sums
  uint32_t window;
  uint32_t page_tokens;
  uint32_t box_rows;  // of a copy: 32, or 16 where pages are no multiple of 32 rows
  PagedRows rows;
  KvFormat key_format, value_format;
  uint32_t key_row_bytes, value_row_bytes;
  ScoreScale scale;
  const float* sinks;
  float* partials;
  uint32_t* merge_counters;
  bool next_comes_early;
  uint8_t* out;
  uint32_t out_tokens;
  float* out_f32;
};

inline constexpr int kDecodeWarps = 4;  // that compute; one more fetches
inline constexpr int kDecodeThreads = 32 * (kDecodeWarps + 1);
inline constexpr uint32_t kChunkKeys = 32;
inline constexpr int kShareStride = 136;  // of a column's shares: 8 columns fall into different banks

template <int kHeadDim, int kColumnTiles>
struct DecodeLayout {
  static constexpr int kColumns = 8 * kColumnTiles;
  static constexpr int kHalves = kHeadDim / 64;  // of a row: copies are 128 bytes wide
  static constexpr uint32_t kHalfBytes = kChunkKeys * 128;
  static constexpr uint32_t kChunkBytes = kHalves * kHalfBytes;
  static constexpr int kChunks = 6 * 128 / kHeadDim;  // of each ring
  static constexpr uint32_t kBarriers = 2 * kChunks * kChunkBytes;
  static constexpr uint32_t kLargest = kBarriers + 4 * kChunks * 8;  // [warps, columns]
  static constexpr uint32_t kComesLast =
      kLargest + kDecodeWarps * kColumns * 4;  // 16 bytes, of which one word is used
  static constexpr uint32_t kFactors = kComesLast + 16;
  static constexpr uint32_t kSums = kFactors + kColumns * 4;  // unrounded shares, [columns, kShareStride]
  static constexpr uint32_t kShares = kSums + kColumns * kShareStride * 4;
  static constexpr uint32_t kBytes = kShares + kColumns * kShareStride * 2;
  static constexpr uint32_t kSharedBytes = kBytes + 1024;  // to begin at a multiple of 1024
};

// A place in a ring, and the parity of the phase that it is in.
template <int kChunks>
struct RingPlace {
  int index = 0;
  uint32_t parity = 0;

  __device__ __forceinline__ void advance(int by) {
    index += by;
    if (index >= kChunks) {
      index -= kChunks;
      parity ^= 1;
    }
  }
  __device__ __forceinline__ RingPlace after(int by) const {
    RingPlace place = *this;
    place.advance(by);
    return place;
  }
};

__device__ __forceinline__ uint32_t chunks_of_block(uint32_t key, uint32_t end) {
  const uint32_t left = (end - key + kChunkKeys - 1) / kChunkKeys;
  return left < 4 ? left : 4;
}

template <int kHeadDim, int kColumnTiles>
struct DecodeRings {
  using Layout = DecodeLayout<kHeadDim, kColumnTiles>;
  using Place = RingPlace<Layout::kChunks>;
  uint32_t base;  // shared memory

  __device__ __forceinline__ uint32_t keys(int i) const { return base + i * Layout::kChunkBytes; }
  __device__ __forceinline__ uint32_t values(int i) const { return keys(Layout::kChunks + i); }
  __device__ __forceinline__ uint32_t keys_full(int i) const { return base + Layout::kBarriers + 8 * i; }
  __device__ __forceinline__ uint32_t keys_empty(int i) const { return keys_full(Layout::kChunks + i); }
  __device__ __forceinline__ uint32_t values_full(int i) const { return keys_full(2 * Layout::kChunks + i); }
  __device__ __forceinline__ uint32_t values_empty(int i) const { return keys_full(3 * Layout::kChunks + i); }

  __device__ __forceinline__ void init() const {
    for (int i = 0; i < Layout::kChunks; ++i) {
      ptx::init_barrier(keys_full(i), 1);
      ptx::init_barrier(keys_empty(i), 1);
      ptx::init_barrier(values_full(i), 1);
      ptx::init_barrier(values_empty(i), kDecodeWarps);
    }
    ptx::publish_barriers();
  }
};

// Where the rows of a chunk begin: its one or two boxes are on this lane or the next.
struct ChunkRows {
  uint32_t page, row;
};

// One ring's copies.
struct ChunkCopies {
  const CUtensorMap* map;  // null: codes
  const std::byte* first;  // of the first page's rows
  size_t page_bytes, head_bytes;
  uint32_t row_bytes;
  uint32_t box_rows;
  const uint32_t lane = threadIdx.x % 32;

  // To a place that is empty. `lane_rows`: of the lane's box.
  template <class Layout>
  __device__ __forceinline__ void copy(const ChunkRows& lane_rows, uint32_t head, uint32_t ring,
                                       uint32_t full) const {
    const uint32_t boxes = box_rows == kChunkKeys ? 1 : 2;
    if (map != nullptr) {
      if (lane == 0) ptx::arrive_expecting(full, Layout::kChunkBytes);
      __syncwarp();
      const uint32_t half = boxes == 1 ? lane : lane / 2, box = boxes == 1 ? 0 : lane % 2;
      if (lane < boxes * Layout::kHalves)
        ptx::copy_box(ring + half * Layout::kHalfBytes + box * box_rows * 128, map, int(half * 64),
                      int(lane_rows.row), int(head), int(lane_rows.page), full);
    } else {
      if (lane == 0) ptx::arrive_expecting(full, kChunkKeys * row_bytes);
      __syncwarp();
      if (lane < boxes)
        ptx::copy_bulk(ring + lane * box_rows * row_bytes,
                       first + lane_rows.page * page_bytes + head * head_bytes + lane_rows.row * row_bytes,
                       box_rows * row_bytes, full);
    }
  }
};

// The warp that fetches.
template <int kHeadDim, int kColumnTiles>
__device__ __forceinline__ void fetch_chunks(const ChunkCopies& keys_copies, const ChunkCopies& values_copies,
                                             const DecodeArgs& args,
                                             const DecodeRings<kHeadDim, kColumnTiles>& rings) {
  using Layout = DecodeLayout<kHeadDim, kColumnTiles>;
  const uint32_t lane = threadIdx.x % 32;
  const uint32_t boxes = args.box_rows == kChunkKeys ? 1 : 2;  // of a chunk
  typename DecodeRings<kHeadDim, kColumnTiles>::Place key_place, value_place;
  bool waited = false;
  const uint32_t all = args.unit_count * args.kv_heads;
  DecodeUnit next = {};
  if (blockIdx.x < all) next = args.units[blockIdx.x / args.kv_heads];
  for (uint32_t u = blockIdx.x; u < all; u += gridDim.x) {
    const DecodeUnit unit = next;
    if (u + gridDim.x < all) next = args.units[(u + gridDim.x) / args.kv_heads];
    if (unit.tokens == 0) continue;
    const uint32_t head = u % args.kv_heads;
    for (uint32_t split = unit.split; split < unit.split + (kColumnTiles == 1 ? unit.here : 1); ++split) {
      const KeySpan keys = keys_of_split(split, unit.row, unit.tokens, args.window);
      // A lane knows where the box is that has its number; those behind the end, and those of pages that were freed, are taken
      // from the last page.
      const uint32_t last_index = (unit.row + unit.tokens - 1) / args.page_tokens;
      const uint32_t own_key = keys.begin + lane * args.box_rows, own_index = own_key / args.page_tokens;
      const uint32_t own_row = own_key - own_index * args.page_tokens;
      const uint32_t last_page = args.page_ids[unit.table + last_index];
      const uint32_t listed_page = own_index < last_index ? args.page_ids[unit.table + own_index] : last_page;
      const uint32_t own_page = listed_page == kNoPage ? last_page : listed_page;
      const auto fetch = [&](uint32_t chunk, const ChunkCopies& copies, uint32_t ring, uint32_t full,
                             uint32_t empty, uint32_t parity) {
        const uint32_t which = chunk * boxes + (boxes == 1 ? 0 : lane % 2);
        const ChunkRows rows = {__shfl_sync(~0u, own_page, which), __shfl_sync(~0u, own_row, which)};
        ptx::wait_barrier(empty, parity ^ 1);
        copies.copy<Layout>(rows, head, ring, full);
      };
      uint32_t chunk = 0;
      for (uint32_t key = keys.begin; key < keys.end; key += kBlockKeys) {
        const uint32_t chunks = chunks_of_block(key, keys.end);
        if (!waited &&
            key + chunks * kChunkKeys > unit.row - unit.before) {  // rows that the kernel before writes
          ptx::wait_for_kernel_before();
          waited = true;
        }
        // All keys of a block before its values: their places are free again before the softmax.
        for (uint32_t c = 0; c < chunks; ++c, key_place.advance(1))
          fetch(chunk + c, keys_copies, rings.keys(key_place.index), rings.keys_full(key_place.index),
                rings.keys_empty(key_place.index), key_place.parity);
        for (uint32_t c = 0; c < chunks; ++c, value_place.advance(1))
          fetch(chunk + c, values_copies, rings.values(value_place.index),
                rings.values_full(value_place.index), rings.values_empty(value_place.index),
                value_place.parity);
        chunk += chunks;
      }
    }
  }
}

}  // namespace quire::cuda
