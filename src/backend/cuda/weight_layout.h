#pragma once

#include <cstddef>
#include <cstdint>

#include "tensor/dtype.h"

// How a weight lies in the GPU's memory: one set of bytes that every product kernel reads, whatever the number of
// tokens. Pure functions; the kernels use the same ones.
//
// A weight is [row / 16][k / 128] blocks of 16 rows by 128 k, each in the order in which the lanes of a warp need
// its numbers. Rows are padded to 64 and k to 128 with zeros.

namespace quire::cuda {

// The forms of a weight on the device. GGUF's other types become bf16.
enum class WeightFormat : uint8_t { bf16, q8_0, q4_0, q4_k };
inline constexpr size_t kWeightFormatCount = 4;

WeightFormat format_for(DType dtype);
const char* name(WeightFormat format);

inline constexpr uint32_t kTileRows = 16;    // rows of a block: what one warp multiplies at a time
inline constexpr uint32_t kBlockK = 128;     // k of a block
inline constexpr uint32_t kGroupK = 32;      // k that share a scale
inline constexpr uint32_t kRowPadding = 64;  // rows of a warpgroup

constexpr uint32_t round_up(uint32_t value, uint32_t multiple) {
  return (value + multiple - 1) / multiple * multiple;
}

constexpr uint32_t block_bytes(WeightFormat format) {
  switch (format) {
    case WeightFormat::bf16:
      return 4096;
    case WeightFormat::q8_0:
      return 2048 + 128;  // codes, then two scales a lane
    case WeightFormat::q4_0:
      return 1024 + 128;
    case WeightFormat::q4_k:
      return 1024 + 256;  // codes, then two scales and two minimums a lane
  }
  return 0;
}

// The sum over k is cut into slices that are summed apart and then added in order: y = ((s0 + s1) + s2) + s3. That
// belongs to the weight, never to the batch, and so does every bit of the result. Slices end at blocks; where four
// equal ones would not, there is one.
struct KPlan {
  uint32_t slices;
  uint32_t slice_blocks;
};

constexpr KPlan k_plan(uint32_t blocks) {
  return blocks % 4 == 0 ? KPlan{4, blocks / 4} : KPlan{1, blocks};
}

struct WeightShape {
  WeightFormat format = WeightFormat::bf16;
  uint32_t rows = 0;
  uint32_t cols = 0;

  constexpr uint32_t padded_rows() const { return round_up(rows, kRowPadding); }
  constexpr uint32_t tiles() const { return padded_rows() / kTileRows; }
  constexpr uint32_t blocks() const { return (cols + kBlockK - 1) / kBlockK; }  // along k
  constexpr size_t bytes() const { return size_t(tiles()) * blocks() * block_bytes(format); }
  constexpr KPlan k_plan() const { return cuda::k_plan(blocks()); }
};

// Within a block, number k of a row stands at this position of the tensor core's sum. Lane 4g + t of a warp holds
// positions 2t, 2t+1, 2t+8 and 2t+9 of every 16, so a lane's numbers are the 32 neighbours 32t .. 32t+31 and share a
// scale. Activations have this order too, for all formats.
constexpr uint32_t position_of(uint32_t k) {
  const uint32_t t = k / 32 % 4, j = k / 4 % 8, i = k % 4;
  return 16 * j + 2 * t + i % 2 + 8 * (i / 2);
}

// The number that stands at a position.
constexpr uint32_t k_at(uint32_t position) {
  const uint32_t j = position / 16, in_step = position % 16;
  return in_step % 8 / 2 * 32 + 4 * j + in_step % 2 + in_step / 8 * 2;
}

// Where the code of (row, k) lies in its block; k counts from the block's first. Half bytes begin at bit `shift`.
struct CodePlace {
  uint32_t byte;
  uint32_t shift;
};

constexpr CodePlace code_place(WeightFormat format, uint32_t row, uint32_t k) {
  const uint32_t half = row / 8, lane = row % 8 * 4 + k / 32;
  const uint32_t j = k / 4 % 8, i = k % 4;
  switch (format) {
    case WeightFormat::bf16: {  // [k / 64][row / 8][k / 8][row][k]: 8 rows by 16 bytes are contiguous
      const uint32_t p = position_of(k);
      return {p / 64 * 2048 + half * 1024 + p % 64 / 8 * 128 + row % 8 * 16 + p % 8 * 2, 0};
    }
    case WeightFormat::q8_0:  // [row / 8][j / 4][lane][j % 4][i]
      return {half * 1024 + j / 4 * 512 + lane * 16 + j % 4 * 4 + i, 0};
    case WeightFormat::q4_0:
    case WeightFormat::q4_k: {  // [row / 8][lane] words of eight: pairs of codes 16 bits apart
      const uint32_t bit = (j % 2 * 2 + i / 2) * 4 + i % 2 * 16;
      return {half * 512 + lane * 16 + j / 2 * 4 + bit / 8, bit % 8};
    }
  }
  return {0, 0};
}

// Where the scale of group k / 32 of a row lies, a bf16; a minimum follows 4 bytes later.
constexpr uint32_t scale_place(WeightFormat format, uint32_t row, uint32_t group) {
  const uint32_t half = row / 8, lane = row % 8 * 4 + group;
  switch (format) {
    case WeightFormat::bf16:
      return 0;
    case WeightFormat::q8_0:
      return 2048 + lane * 4 + half * 2;
    case WeightFormat::q4_0:
      return 1024 + lane * 4 + half * 2;
    case WeightFormat::q4_k:
      return 1024 + lane * 8 + half * 2;
  }
  return 0;
}

// A code q is used as the bits of a bf16, which is q * 2^-133: linear over 0 .. 255, subnormal or not. Scales are
// stored times 2^73 and minimums times 2^-60, so one fused multiply-add makes a weight times 2^-60. A power of two on
// one operand changes nothing in the tensor core's sum; the sum is multiplied by 2^60 at the end.
inline constexpr float kStoredScale = 0x1p73f;
inline constexpr float kStoredMin = 0x1p-60f;
inline constexpr float kStoredWeight = 0x1p-60f;
inline constexpr float kUndoStoredWeight = 0x1p60f;

// What is subtracted from a code; Q4_K has minimums instead.
constexpr int code_bias(WeightFormat format) {
  return format == WeightFormat::q8_0 ? 128 : format == WeightFormat::q4_0 ? 8 : 0;
}

}  // namespace quire::cuda
