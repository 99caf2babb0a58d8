#pragma once

#include <cstddef>
#include <cstdint>

#include "backend/cuda/matmul/activation_layout.h"

// Which kernel multiplies a weight with how many tokens, and how it shares the work: pure functions of shapes, so
// that they are tested without a GPU. Nothing here shows in a result's bits; those belong to the weight's KPlan.

namespace quire::cuda {

struct DeviceTraits {
  int capability = 0;  // 90 for 9.0
  uint32_t multiprocessors = 0;
};

enum class ProductKernel : uint8_t {
  plain,   // any architecture, any number of tokens
  stream,  // Hopper, few tokens: every warp streams weights through a ring of its own
  tile,    // Hopper, more tokens: tiles of 128 rows by up to 192 tokens, by warpgroups
};

inline constexpr uint32_t kStreamTokens = 16;

// Of the 228 KB of a multiprocessor a block can have 227; 1 KB is taken from each block. Two blocks share it evenly
// with 113 KB each. The kernels' own variables take a little of it.
inline constexpr uint32_t kOwnSharedBytes = 128;
inline constexpr uint32_t kSharedBytesOfOne = 227 * 1024 - kOwnSharedBytes;
inline constexpr uint32_t kSharedBytesOfTwo = 113 * 1024 - kOwnSharedBytes;

// ---- stream

// k of the smallest piece of a ring.
constexpr uint32_t stream_unit_k(WeightFormat format) {
  return format == WeightFormat::bf16 ? 64 : 128;
}

// The shape of a stream kernel, which is compiled for each: a warp has `row_tiles` tiles of 16 rows by `token_tiles`
// of 8 tokens. `places` blocks fit a multiprocessor: with two, a kernel's weights stream in while the one before
// it ends.
struct StreamShape {
  uint32_t token_tiles;
  uint32_t row_tiles;
  uint32_t warps;
  uint32_t places;
};

constexpr StreamShape stream_shape(WeightFormat format, uint32_t token_tiles) {
  if (format == WeightFormat::bf16) return {token_tiles, 1, 8, 2};
  if (token_tiles == 1) return {1, 1, has_half_bytes(format) ? 16u : 12u, 2};
  return {token_tiles, 2, 8, 1};  // two row tiles share the activations, which are the larger part by then
}

struct StreamPlan {
  StreamShape shape;
  uint32_t chunk_units;  // units that one copy brings
  uint32_t stages;       // copies under way for a warp
  uint32_t stage_bytes;  // weights of a chunk, then its activations
  uint32_t sum_buffers;  // 2: a group of warps goes on while its sums are read
  uint32_t shared_bytes;
};

StreamPlan plan_stream(WeightFormat format, uint32_t tokens);

// Sums of a warp's slice in shared memory: [token][row], rows padded against bank conflicts. Eight tokens of Q4_K
// leave room for less.
constexpr uint32_t stream_sum_stride(WeightFormat format, uint32_t row_tiles) {
  return kTileRows * row_tiles + (format == WeightFormat::q4_k && row_tiles == 1 ? 1 : 4);
}

// ---- tile

inline constexpr uint32_t kTileProductRows = 128;  // two warpgroups of 64

constexpr uint32_t tile_stage_k(WeightFormat format) {
  return format == WeightFormat::bf16 ? 64 : 128;
}

constexpr uint32_t tile_weight_bytes(WeightFormat format) {  // of a stage
  return kTileProductRows / kTileRows * block_bytes(format) * tile_stage_k(format) / kBlockK;
}

constexpr uint32_t tile_stage_bytes(WeightFormat format, uint32_t tile_tokens) {
  return tile_weight_bytes(format) + tile_tokens * tile_stage_k(format) * 2;
}

// Shared memory: the ring of stages, which begins at a multiple of 1024, its barriers, then what a tile's end needs: a row of
// activations and a scale for each token.
inline constexpr uint32_t kTileBarrierBytes = 256;

constexpr uint32_t tile_end_bytes(uint32_t tile_tokens) {
  return tile_tokens * (kActivationRowBytes + 4);
}

constexpr uint32_t tile_stages(WeightFormat format, uint32_t tile_tokens) {
  const uint32_t room = kSharedBytesOfOne - 1024 - kTileBarrierBytes - tile_end_bytes(tile_tokens);
  const uint32_t stages = room / tile_stage_bytes(format, tile_tokens);
  return stages < 12 ? stages : 12;
}

constexpr uint32_t tile_shared_bytes(WeightFormat format, uint32_t tile_tokens) {
  return 1024 + tile_stages(format, tile_tokens) * tile_stage_bytes(format, tile_tokens) + kTileBarrierBytes +
         tile_end_bytes(tile_tokens);
}

// Tokens of a tile: 32, 64, 128 or 192.
uint32_t tile_tokens_for(uint32_t tokens);

// What a block does next: slices [first, end) of a tile.
struct TileWork {
  uint32_t tile;
  uint32_t first_slice;
  uint32_t end_slice;
};

// Tiles [0, whole) are dealt to the blocks in turn and computed whole. What does not fill a round is cut into
// slices, of which each block takes a contiguous range: unit u is slice u % slices of tile whole + u / slices. The
// block that comes last to a shared tile adds its slices in order.
struct TileSchedule {
  uint32_t tiles;
  uint32_t slices;
  uint32_t blocks;
  uint32_t whole;

  constexpr uint32_t units() const { return (tiles - whole) * slices; }
  // Blocks [0, sharing()) have units. With more units than blocks that is all of them.
  constexpr uint32_t sharing() const { return units() < blocks ? units() : blocks; }
  // REQUIRES of these: units() > 0 and block <= sharing().
  constexpr uint32_t first_unit(uint32_t block) const {
    return uint32_t(uint64_t(block) * units() / sharing());
  }
  constexpr uint32_t block_of(uint32_t unit) const {
    return uint32_t(((uint64_t(unit) + 1) * sharing() - 1) / units());
  }
  // How many blocks share a tile, and how many of its slices the first of them has. REQUIRES: tile >= whole.
  constexpr uint32_t sharers(uint32_t tile) const {
    const uint32_t first = (tile - whole) * slices;
    return block_of(first + slices - 1) - block_of(first) + 1;
  }
  constexpr uint32_t leading_slices(uint32_t tile) const {
    const uint32_t first = (tile - whole) * slices;
    const uint32_t end = first_unit(block_of(first) + 1) - first;
    return end < slices ? end : slices;
  }
};

TileSchedule schedule_tiles(const WeightShape& shape, uint32_t tokens, uint32_t blocks);

// A block's work in the order in which it does it. The schedule must outlive it.
class TileCursor {
 public:
  constexpr TileCursor(const TileSchedule& schedule, uint32_t block)
      : schedule_(schedule),
        tile_(block),
        unit_(block < schedule.sharing() ? schedule.first_unit(block) : 0),
        end_unit_(block < schedule.sharing() ? schedule.first_unit(block + 1) : 0) {}

  constexpr bool next(TileWork& work) {
    if (tile_ < schedule_.whole) {
      work = {tile_, 0, schedule_.slices};
      tile_ += schedule_.blocks;
      return true;
    }
    if (unit_ == end_unit_) return false;
    const uint32_t first = unit_ % schedule_.slices;
    const uint32_t left = end_unit_ - unit_, in_tile = schedule_.slices - first;
    const uint32_t count = left < in_tile ? left : in_tile;
    work = {schedule_.whole + unit_ / schedule_.slices, first, first + count};
    unit_ += count;
    return true;
  }

 private:
  const TileSchedule& schedule_;
  uint32_t tile_, unit_, end_unit_;
};

// Memory in which blocks that share a tile leave their slices: [tile][warpgroup][slice] of f32, and a counter for
// each tile.
constexpr size_t tile_sums_bytes(const TileSchedule& schedule, uint32_t tile_tokens) {
  return size_t(schedule.tiles - schedule.whole) * schedule.slices * kTileProductRows * tile_tokens * 4;
}

// ---- choice

ProductKernel choose_kernel(const DeviceTraits& device, uint32_t tokens);

}  // namespace quire::cuda
