#pragma once

#include <cstdint>

#include "backend/cuda/attention/attention_prefill_fetch.cuh"
#include "backend/cuda/attention/kv_row_pieces.cuh"

namespace quire::cuda {

inline constexpr int kConvertThreads = 128;

// In the place of the warp that fetches, for pages in formats that products do not take: four warps read rows, make numbers
// of them and write these where, and as swizzled as, a copy would. Eight numbers of a row at a time; a block's pages come from the
// level-2 cache mostly, for the tiles beside this one read them too.
template <int kHeadDim>
struct PrefillConvert {
  using Layout = PrefillLayout<kHeadDim>;
  static constexpr uint32_t kPieces = kHeadDim / 8;                   // of a row
  static constexpr uint32_t kRowsAtOnce = kConvertThreads / kPieces;  // by all threads
  static constexpr uint32_t kAtOnce = 4;  // pieces of a thread whose loads are under way

  const PrefillTiles<kHeadDim> tiles;
  const PrefillArgs& args = tiles.args;
  const PrefillShared<kHeadDim> shared = tiles.shared;
  const uint32_t thread = threadIdx.x % kConvertThreads;
  const uint32_t piece = thread % kPieces, first_row = thread / kPieces;
  StagePlace<Layout::kStages> stage = {};

  struct Side {
    KvFormat format;
    const std::byte* first;  // of the first page's rows
    uint32_t row_bytes;
    uint32_t to, full;
    uint16_t* factors;
  };
  __device__ __forceinline__ Side keys() const {
    return {args.key_format,
            args.rows.layer,
            uint32_t(args.rows.key_row_bytes),
            shared.keys(stage.index),
            shared.keys_full(stage.index),
            shared.key_factors(stage.index)};
  }
  __device__ __forceinline__ Side values() const {
    return {args.value_format,
            args.rows.layer + args.rows.page_tokens * args.rows.key_row_bytes,
            uint32_t(args.rows.value_row_bytes),
            shared.values(stage.index),
            shared.values_full(stage.index),
            shared.value_factors(stage.index)};
  }

  // A lane knows where the box of rows begins that has its number.
  __device__ __forceinline__ unsigned long long box_offset(const Side& side, const PrefillTile& tile,
                                                           uint32_t block) const {
    const uint32_t key = block * kBlockKeys + tiles.lane * args.box_rows % kBlockKeys;
    return tiles.page_of(tile, key) * args.rows.page_bytes + tile.kv_head * args.rows.head_bytes +
           key % args.page_tokens * side.row_bytes;
  }
  __device__ __forceinline__ const std::byte* row_of(const Side& side, unsigned long long own_box,
                                                     uint32_t row) const {
    return side.first + __shfl_sync(~0u, own_box, int(row / args.box_rows)) +
           row % args.box_rows * side.row_bytes;
  }

  template <KvFormat kFormat>
  __device__ __forceinline__ void convert_rows(const Side& side, unsigned long long own_box) const {
#pragma unroll 1
    for (uint32_t begin = first_row; begin < kBlockKeys; begin += kAtOnce * kRowsAtOnce) {
      uint4 numbers[kAtOnce];
#pragma unroll
      for (uint32_t i = 0; i < kAtOnce; ++i)
        numbers[i] =
            load_whole_piece(kFormat, row_of(side, own_box, begin + i * kRowsAtOnce), kHeadDim, piece);
#pragma unroll
      for (uint32_t i = 0; i < kAtOnce; ++i) {
        const uint32_t row = begin + i * kRowsAtOnce;
        const uint32_t at = side.to - shared.base + piece / 8 * Layout::kHalfBytes + row * 128 +
                            ((piece % 8 ^ (row & 7)) << 4);
        *reinterpret_cast<uint4*>(shared.memory + at) = numbers[i];
      }
    }
  }

  __device__ __forceinline__ void convert(const Side& side, const PrefillTile& tile, uint32_t block) const {
    const unsigned long long own_box = box_offset(side, tile, block);
    switch (side.format) {
      case KvFormat::int8:
        convert_rows<KvFormat::int8>(side, own_box);
        break;
      case KvFormat::fp8:
        convert_rows<KvFormat::fp8>(side, own_box);
        break;
      case KvFormat::q4:
      case KvFormat::q4_plain:
        convert_rows<KvFormat::q4>(side, own_box);
        break;
      default:
        convert_rows<KvFormat::bf16>(side, own_box);  // f16 alike; f32 takes the general kernel
    }
    const std::byte* own_row = row_of(side, own_box, thread);
    if (has_factors(side.format)) side.factors[thread] = half_at(own_row + kHeadDim);
    ptx::publish_to_copies();
    ptx::arrive(side.full);
  }

  __device__ __forceinline__ void convert_tile(const PrefillTile& tile, uint32_t number) {
    const BlockSpan blocks = blocks_of(tile, args.window);
    for (uint32_t block = blocks.begin; block < blocks.end; ++block, stage.advance()) {
      ptx::wait_barrier(shared.keys_empty(stage.index), stage.parity ^ 1);
      convert(keys(), tile, block);
      if (block == blocks.begin && thread < 32) tiles.fetch_queries(tile, number);
      ptx::wait_barrier(shared.values_empty(stage.index), stage.parity ^ 1);
      convert(values(), tile, block);
    }
  }

  // One warp takes the tiles. Who computes is done with one after everything of it was converted, so a slot is not written again
  // before all of these threads have read it.
  __device__ __forceinline__ void run() {
    for (uint32_t number = 0;; ++number) {
      if (thread < 32) tiles.publish(number);
      ptx::wait_barrier(shared.slot_full(int(number & 1)), number >> 1 & 1);
      const PrefillTile tile = shared.slots()[number & 1];
      if (tile.tokens == 0) return;
      convert_tile(tile, number);
    }
  }
};

}  // namespace quire::cuda
