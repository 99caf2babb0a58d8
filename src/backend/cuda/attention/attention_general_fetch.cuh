#pragma once

#include <cstdint>

#include "backend/cuda/attention/attention.h"
#include "backend/cuda/attention/attention_rule.h"
#include "backend/cuda/attention/kv_row_pieces.cuh"
#include "backend/cuda/numbers.cuh"

// How rows come to the general kernel of attention: in chunks of keys and then of values, block by block, through a ring in shared
// memory, while the chunks before them are computed. Rows of 16-bit numbers are copied beside everything else; of other formats
// numbers are made on the way.

namespace quire::cuda {

// Rows of queries of a block of threads: kGroups groups of 16; each has kParts warps, which share the scores and have kOwnDims of the
// values each. Of keys that go on in their values a row is both, one behind the other. What is compiled for tiles or for units alone
// needs fewer registers.
enum class GeneralRowKind { apart, whole, whole_in_tiles, whole_in_units };
template <int kGroups, int kParts, int kOwnDims, GeneralRowKind kKind = GeneralRowKind::apart>
struct GeneralShape {
  static constexpr bool kWholeRows = kKind != GeneralRowKind::apart;
  static constexpr bool kTilesAlone = kKind == GeneralRowKind::whole_in_tiles;
  static constexpr bool kUnitsAlone = kKind == GeneralRowKind::whole_in_units;
  static constexpr int kRowGroups = kGroups, kWarpParts = kParts, kDims = kOwnDims;
  static constexpr int kThreads = 32 * kGroups * kParts;
  static constexpr bool kSavesRegisters = kThreads > 256 || kOwnDims > 64;
  static constexpr bool kHasAllChunks = kWholeRows && kThreads > 256;  // of a block, at a time
  static constexpr uint32_t kRows = 16 * kGroups;
  static constexpr uint32_t kChunkKeys = kParts <= 4 ? 32 : 8 * kParts;
  // Of a warp in a chunk: eight keys each. Of whole rows half of the warps have twice as many, because shared memory is what holds
  // them up, and so they ask for fewer queries.
  static constexpr int kKeyTiles = kWholeRows ? 2 : int(kChunkKeys) / 8 / kParts;
  static constexpr int kScoringParts = int(kChunkKeys) / 8 / kKeyTiles;
  static constexpr int kDimTiles = kOwnDims / 8;
  static constexpr int kMostDim = kParts * kOwnDims;
  static constexpr uint32_t kBlockChunks = kBlockKeys / kChunkKeys;
};

inline constexpr uint32_t kScorePitch = kBlockKeys + 8;  // of a row of scores: eight rows in different banks
inline constexpr uint32_t kSharePitch = kBlockKeys * 2 + 16;  // in bytes
inline constexpr uint32_t kFactorBlocks = 4;                  // whose factors of values are there at a time
inline constexpr uint32_t kMostSlots = 6;

// Where things are in shared memory, in bytes. The queries come first.
struct GeneralMemory {
  uint32_t pitch;   // of a row of 16-bit numbers: eight rows in different banks
  uint32_t behind;  // where values begin in a row that is whole
  uint32_t scores;  // [rows, kScorePitch]; then the shares before rounding
  uint32_t shares;  // [rows, kSharePitch]
  uint32_t rows;    // a GeneralRow each
  uint32_t value_factors;
  uint32_t ring, slot_bytes, slots;  // a slot: the rows of a chunk, then their factors if they are keys
  uint32_t bytes;
};

// What is known of a row of queries in a split.
struct GeneralRow {
  float sums[4];
  float reference, factor;  // the last block's
  float unused[2];
};

struct GeneralArgs {
  AttentionParams params;
  HeadGroup group;
  const PrefillTile* tiles;  // or units
  const DecodeUnit* units;
  uint32_t row_blocks;  // blocks of threads for the rows of a tile or a unit
  float* partials;
  uint32_t columns;            // of a place among the partial sums
  uint32_t page_tokens_share;  // 2^32 / page_tokens, rounded up
  GeneralMemory memory;
};

// What a block of threads computes.
struct GeneralTask {
  uint32_t token, tokens, row, table, kv_head, first_row;
  uint32_t split, end_split;  // of the context, in turn
  uint32_t place;  // of the partial sums of these splits, if others have splits of these tokens too
  bool is_whole;

  __device__ __forceinline__ uint32_t end_key() const { return row + tokens; }
};

// Where the partial sums of a row of a task are: values, then reference and sum.
__device__ __forceinline__ float* general_partial(const GeneralArgs& args, uint32_t place, uint32_t kv_head,
                                                  uint32_t row) {
  const PagedRows& rows = args.params.rows;
  return args.partials +
         ((size_t(place) * rows.kv_heads + kv_head) * args.columns + row) * (rows.value_dim + kPartialExtra);
}

// Goes through the chunks of a task: block by block those of its keys, then those of its values.
template <class Shape>
struct GeneralChunk {
  uint32_t split, block, end;               // the first key of the block, and where the keys of the split end
  uint32_t chunk = 0, chunks;               // of the block
  uint32_t blocks = 0;                      // before this one
  bool is_values = false, is_first = true;  // the first block of its split

  __device__ __forceinline__ GeneralChunk(const GeneralTask& task, uint32_t window) : split(task.split) {
    begin_split(task, window);
  }
  __device__ __forceinline__ uint32_t key() const { return block + chunk * Shape::kChunkKeys; }
  __device__ __forceinline__ bool is_first_of_split() const { return is_first && chunk == 0 && !is_values; }
  __device__ __forceinline__ uint32_t keys() const { return min(kBlockKeys, end - block); }
  __device__ __forceinline__ bool is_last_of_split() const {
    return is_values && chunk + 1 == chunks && is_last_block();
  }
  __device__ __forceinline__ void advance(const GeneralTask& task, uint32_t window) {
    if (++chunk < chunks) return;
    chunk = 0;
    is_values = !is_values;
    if (!is_values) next_block(task, window);
  }
  __device__ __forceinline__ bool is_last_block() const { return block + kBlockKeys >= end; }
  __device__ __forceinline__ void next_block(const GeneralTask& task, uint32_t window) {
    ++blocks;
    is_first = false;
    block += kBlockKeys;
    if (block < end) return begin_block();
    ++split;
    if (split < task.end_split) begin_split(task, window);
  }

 private:
  __device__ __forceinline__ void begin_split(const GeneralTask& task, uint32_t window) {
    const KeySpan keys = keys_of_split(split, task.row, task.tokens, window);
    block = keys.begin;
    end = keys.end;
    is_first = true;
    begin_block();
  }
  __device__ __forceinline__ void begin_block() {
    chunks = (min(kBlockKeys, end - block) + Shape::kChunkKeys - 1) / Shape::kChunkKeys;
  }
};

// A pointer that another lane has.
__device__ __forceinline__ const std::byte* place_from(const std::byte* own, uint32_t lane) {
  return reinterpret_cast<const std::byte*>(
      __shfl_sync(~0u, reinterpret_cast<unsigned long long>(own), int(lane)));
}

// Of 16 bytes, in a row up to a multiple of sixteen numbers.
__device__ __forceinline__ uint32_t pieces_of(uint32_t dim) {
  return (dim + 15) / 16 * 2;
}

// By a warp, whose lanes have the rows' places. Its loops are not unrolled: the code that most models need should stay small.
__device__ __forceinline__ void convert_rows(KvFormat format, uint32_t dim, const std::byte* own,
                                             uint32_t count, uint8_t* to, uint32_t pitch) {
  const uint32_t pieces = pieces_of(dim);
#pragma unroll 1
  for (uint32_t r = 0; r < count; ++r, to += pitch) {
    const std::byte* from = place_from(own, r);
#pragma unroll 1
    for (uint32_t piece = threadIdx.x % 32; piece < pieces; piece += 32) {
      *reinterpret_cast<uint4*>(to + piece * 16) =
          from == nullptr || 8 * piece >= dim ? uint4{0, 0, 0, 0} : load_piece(format, from, dim, piece);
    }
  }
}

template <class Shape>
struct GeneralFetch {
  static constexpr uint32_t kThreads = Shape::kThreads, kChunkKeys = Shape::kChunkKeys;

  const GeneralArgs& args;
  const GeneralTask& task;
  uint8_t* const memory;
  const uint32_t shared;
  GeneralChunk<Shape> next{task, args.params.window};
  uint32_t filled = 0;  // the slot that is filled next

  __device__ __forceinline__ uint32_t slot_at(uint32_t i) const {
    return args.memory.ring + i * args.memory.slot_bytes;
  }
  __device__ __forceinline__ uint32_t slot_after(uint32_t i) const {
    return i + 1 == args.memory.slots ? 0 : i + 1;
  }
  __device__ __forceinline__ float* key_factors(uint32_t slot) const {
    return reinterpret_cast<float*>(memory + slot + kChunkKeys * args.memory.pitch);
  }
  __device__ __forceinline__ float* value_factors(uint32_t block) const {
    return reinterpret_cast<float*>(memory + args.memory.value_factors) + block % kFactorBlocks * kBlockKeys;
  }

  // The queries, up to a multiple of sixteen numbers; `row` gives where one is, or null for zeros.
  template <class Row>
  __device__ __forceinline__ void copy_queries(const Row& row) const {
    const uint32_t key_dim = args.params.rows.key_dim;
    copy_parts(row, key_dim, 0, 0);
    if constexpr (Shape::kWholeRows)
      copy_parts(row, args.params.rows.value_dim, key_dim * 2, args.memory.behind);
  }

  // So many numbers of each query, from these bytes of it on.
  template <class Row>
  __device__ __forceinline__ void copy_parts(const Row& row, uint32_t dim, uint32_t begin,
                                             uint32_t to) const {
    const uint32_t pieces = pieces_of(dim);
    for (uint32_t r = threadIdx.x / 32; r < Shape::kRows; r += kThreads / 32) {
      const std::byte* from = row(r);
      for (uint32_t piece = threadIdx.x % 32; piece < pieces; piece += 32) {
        const bool is_there = from != nullptr && 8 * piece < dim;
        ptx::copy_16_async(shared + r * args.memory.pitch + to + piece * 16,
                           is_there ? from + begin + 16 * piece : args.params.rows.layer, is_there ? 16 : 0);
      }
    }
  }

  // Until the chunk has come whose turn it is: all but the youngest slots - 2.
  __device__ __forceinline__ void wait_for_oldest() const {
    static_assert(kMostSlots == 6);
    switch (args.memory.slots) {
      case 2:
        return ptx::wait_copies<0>();
      case 3:
        return ptx::wait_copies<1>();
      case 4:
        return ptx::wait_copies<2>();
      case 5:
        return ptx::wait_copies<3>();
      default:
        return ptx::wait_copies<4>();
    }
  }

  __device__ __forceinline__ void fetch() {
    if (next.split != task.end_split) {
      fetch_rows(slot_at(filled), next.is_values);
      if (!next.is_values && next.chunk == 0) fetch_value_factors();
      next.advance(task, args.params.window);
    }
    filled = slot_after(filled);
    ptx::commit_copies();  // of nothing too: they are counted
  }

  // A chunk of whole rows of the block that is next.
  __device__ __forceinline__ void fetch_whole(uint32_t chunk) {
    if (next.split != task.end_split && chunk < next.chunks) {
      next.chunk = chunk;
      const uint32_t slot = slot_at(args.memory.slots == 1 ? 0 : chunk);
      fetch_rows(slot, false);
      fetch_rows(slot + args.memory.behind, true);
      if (chunk == 0) fetch_value_factors();
    }
    ptx::commit_copies();
  }
  __device__ __forceinline__ void next_block() {
    if (next.split != task.end_split) next.next_block(task, args.params.window);
  }

 private:
  // A warp has some rows that follow each other; its lanes look up where they are, each one.
  __device__ __forceinline__ void fetch_rows(uint32_t slot, bool of_values) const {
    constexpr uint32_t kOwn = kChunkKeys / (kThreads / 32);
    static_assert(kOwn == 4 || kOwn == 8);
    const KvFormat format = of_values ? args.params.value_format : args.params.key_format;
    const uint32_t dim = of_values ? args.params.rows.value_dim : args.params.rows.key_dim;
    const uint32_t lane = threadIdx.x % 32, first = threadIdx.x / 32 * kOwn;
    const std::byte* own = lane < kOwn ? row_at(next.key() + first + lane, of_values) : nullptr;
    if (!of_values && has_factors(format) && lane < kOwn)
      key_factors(slot)[first + lane] = own == nullptr ? 0.0f : kernel_factor(format, own, dim);
    const uint32_t pieces = pieces_of(dim);
    const uint32_t lanes_log2 = pieces > 16 ? 5 : pieces > 8 ? 4 : 3;  // of a row
    const uint32_t at_once = 32u >> lanes_log2, first_piece = lane & ((1u << lanes_log2) - 1);
    if (format != KvFormat::bf16 && format != KvFormat::f16)
      return convert_rows(format, dim, own, kOwn, memory + slot + first * args.memory.pitch,
                          args.memory.pitch);
#pragma unroll 4
    for (uint32_t begin = 0; begin < kOwn; begin += at_once) {
      const uint32_t r = begin + (lane >> lanes_log2);
      const std::byte* from = place_from(own, r);
      const uint32_t to = shared + slot + (first + r) * args.memory.pitch;
      for (uint32_t piece = first_piece; piece < pieces; piece += 1u << lanes_log2) {
        const bool is_there = from != nullptr && 8 * piece < dim;
        ptx::copy_16_async(to + piece * 16, is_there ? from + 16 * piece : args.params.rows.layer,
                           is_there ? 16 : 0);
      }
    }
  }

  __device__ __forceinline__ void fetch_value_factors() const {
    const KvFormat format = args.params.value_format;
    if (!has_factors(format)) return;
#pragma unroll 1
    for (uint32_t r = threadIdx.x; r < kBlockKeys; r += kThreads) {
      const std::byte* from = row_at(next.block + r, true);
      value_factors(next.blocks)[r] =
          from == nullptr ? 0.0f : kernel_factor(format, from, args.params.rows.value_dim);
    }
  }

  // Where the row of a key is, or null where nobody sees it.
  __device__ __forceinline__ const std::byte* row_at(uint32_t key, bool of_values) const {
    const PagedRows& rows = args.params.rows;
    if (key >= task.end_key()) return nullptr;
    const uint32_t of_table = rows.page_tokens == 1 ? key : __umulhi(key, args.page_tokens_share);
    const uint32_t page = args.params.page_ids[task.table + of_table];
    if (page == kNoPage) return nullptr;
    const uint32_t row = key - of_table * rows.page_tokens;
    return of_values ? rows.value_row(page, task.kv_head, row) : rows.key_row(page, task.kv_head, row);
  }
};

}  // namespace quire::cuda
