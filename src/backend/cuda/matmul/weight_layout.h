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
enum class WeightFormat : uint8_t { bf16, q8_0, q4_0, q4_k, q6_k, mxfp4 };
inline constexpr size_t kWeightFormatCount = 6;
inline constexpr WeightFormat kWeightFormats[kWeightFormatCount] = {WeightFormat::bf16, WeightFormat::q8_0,
                                                                    WeightFormat::q4_0, WeightFormat::q4_k,
                                                                    WeightFormat::q6_k, WeightFormat::mxfp4};

WeightFormat format_for(DType dtype);
const char* name(WeightFormat format);

inline constexpr uint32_t kTileRows = 16;    // rows of a block: what one warp multiplies at a time
inline constexpr uint32_t kBlockK = 128;     // k of a block
inline constexpr uint32_t kGroupK = 32;      // k of a lane, which share a scale or two
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
    case WeightFormat::mxfp4:
      return 1024 + 128;
    case WeightFormat::q4_k:
      return 1024 + 256;  // codes, then two scales and two minimums a lane
    case WeightFormat::q6_k:
      return 1024 + 512 + 256;  // four bits of the codes, the other two, then four scales a lane
  }
  return 0;
}

constexpr bool has_half_bytes(WeightFormat format) {
  return format == WeightFormat::q4_0 || format == WeightFormat::q4_k || format == WeightFormat::mxfp4;
}

// Bits of a weight's code.
constexpr uint32_t code_bits(WeightFormat format) {
  if (format == WeightFormat::bf16) return 16;
  if (format == WeightFormat::q6_k) return 6;
  return has_half_bytes(format) ? 4 : 8;
}

// k that share a scale.
constexpr uint32_t scale_k(WeightFormat format) {
  return format == WeightFormat::q6_k ? 16 : 32;
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

// A gate and its up are a pair, and pairs are rows of one weight: rows 16i .. 16i+7 are gates, the next eight their ups, so
// that one lane of the tensor core holds both (gated_rows). Of a hidden layer of `width` numbers pair p is number
// gated_column(p, width): pairs have the order of positions, which lets eight of them be written side by side, but for what
// is left behind the last whole block.
constexpr bool in_whole_block(uint32_t pair, uint32_t width) {
  return pair / kBlockK < width / kBlockK;
}

constexpr uint32_t gated_column(uint32_t pair, uint32_t width) {
  return in_whole_block(pair, width) ? pair / kBlockK * kBlockK + k_at(pair % kBlockK) : pair;
}

// The row of a pair's gate, and from it to its up.
constexpr uint32_t gate_row(uint32_t pair) {
  return pair / 8 * 16 + pair % 8;
}
inline constexpr uint32_t kUpAfterGate = 8;

// Of a 32-bit word that holds the codes of eight numbers of a lane: where a bit of number 4 * odd + i is. Codes of even
// and odd i are 16 bits apart, so that a masked word is two codes side by side.
constexpr uint32_t half_byte_bit(uint32_t odd, uint32_t i, uint32_t bit) {
  return odd * 8 + i / 2 * 4 + i % 2 * 16 + bit;
}

// The same for MXFP4, whose codes (sign, two bits of exponent, one of fraction) are moved to bits 15, 8, 7 and 6 of a
// bf16. The first lies there; two more get there by one shift or rotation, the last by two shifts.
constexpr uint32_t mxfp4_bit(uint32_t odd, uint32_t i, uint32_t bit) {
  constexpr uint8_t kPlaces[4][4] = {{6, 7, 8, 15}, {10, 11, 12, 3}, {0, 1, 2, 9}, {4, 5, 14, 13}};
  const uint32_t which = odd * 2 + i / 2;
  const uint32_t half =
      which == 1 && bit == 3 ? 1 - i % 2 : i % 2;  // the rotation brings that sign from beside
  return half * 16 + kPlaces[which][bit];
}

// Q6_K's other two bits: of number 4 * step + i with step 0 .. 3, in a word of sixteen numbers. Where i < 2 they are the
// upper two, wanted at bit 4, else the lower two, wanted at bit 2: as they are, shifted by 8, rotated by 4, or both.
constexpr uint32_t quarter_bit(uint32_t step, uint32_t i, uint32_t bit) {
  constexpr uint8_t kUpper[4] = {4, 12, 0, 8}, kLower[4] = {2, 10, 14, 6};
  const uint32_t half = step == 2 && i >= 2 ? 1 - i % 2 : i % 2;
  return half * 16 + (i < 2 ? kUpper[step] : kLower[step]) + bit;
}

// Where bit `bit` of the code of (row, k) lies in its block, in bits from its begin; k counts from the block's first.
constexpr uint32_t code_bit(WeightFormat format, uint32_t row, uint32_t k, uint32_t bit) {
  const uint32_t half = row / 8, lane = row % 8 * 4 + k / 32;
  const uint32_t j = k / 4 % 8, i = k % 4;
  const uint32_t word = half * 512 + lane * 16 + j / 2 * 4;  // of half bytes: [row / 8][lane][j / 2]
  switch (format) {
    case WeightFormat::bf16: {  // [k / 64][row / 8][k / 8][row][k]: 8 rows by 16 bytes are contiguous
      const uint32_t p = position_of(k);
      return (p / 64 * 2048 + half * 1024 + p % 64 / 8 * 128 + row % 8 * 16 + p % 8 * 2) * 8 + bit;
    }
    case WeightFormat::q8_0:  // [row / 8][j / 4][lane][j % 4][i]
      return (half * 1024 + j / 4 * 512 + lane * 16 + j % 4 * 4 + i) * 8 + bit;
    case WeightFormat::q4_0:
    case WeightFormat::q4_k:
      return word * 8 + half_byte_bit(j % 2, i, bit);
    case WeightFormat::mxfp4:
      return word * 8 + mxfp4_bit(j % 2, i, bit);
    case WeightFormat::q6_k: {  // half bytes are the lower four bits where i < 2, else the upper four
      const uint32_t first = i < 2 ? 0 : 2;
      if (bit - first < 4) {  // [row / 8][j / 4][lane][j / 2 % 2]
        return (half * 512 + j / 4 * 256 + lane * 8 + j / 2 % 2 * 4) * 8 +
               half_byte_bit(j % 2, i, bit - first);
      }
      const uint32_t quarters = 1024 + j / 4 * 256 + lane * 8 + half * 4;  // [j / 4][lane][row / 8]
      return quarters * 8 + quarter_bit(j % 4, i, i < 2 ? bit - 4 : bit);
    }
  }
  return 0;
}

// Where the scale of (row, k) lies, a bf16; a minimum follows 4 bytes later.
constexpr uint32_t scale_place(WeightFormat format, uint32_t row, uint32_t k) {
  const uint32_t half = row / 8, lane = row % 8 * 4 + k / 32;
  switch (format) {
    case WeightFormat::bf16:
      return 0;
    case WeightFormat::q8_0:
      return 2048 + lane * 4 + half * 2;
    case WeightFormat::q4_0:
    case WeightFormat::mxfp4:
      return 1024 + lane * 4 + half * 2;
    case WeightFormat::q4_k:
      return 1024 + lane * 8 + half * 2;
    case WeightFormat::q6_k:
      return 1536 + k / 16 % 2 * 128 + lane * 4 + half * 2;
  }
  return 0;
}

// A code q is used as the bits of a bf16, which is q * 2^-133: linear over 0 .. 255, subnormal or not. Scales are
// stored times 2^73 and minimums times 2^-60, so one fused multiply-add makes a weight times 2^-60. A power of two on
// one operand changes nothing in the tensor core's sum; the sum is multiplied by 2^60 at the end. A code of MXFP4 is a
// small float; moved to where a bf16 has its bits it is that number times 2^-126, so its scale is stored times 2^66.
inline constexpr float kStoredScale = 0x1p73f;
inline constexpr float kStoredPower = 0x1p66f;
inline constexpr float kStoredMin = 0x1p-60f;
inline constexpr float kStoredWeight = 0x1p-60f;
inline constexpr float kUndoStoredWeight = 0x1p60f;

constexpr float stored_scale_factor(WeightFormat format) {
  return format == WeightFormat::mxfp4 ? kStoredPower : kStoredScale;
}

// What is subtracted from a code; Q4_K has minimums instead.
constexpr int code_bias(WeightFormat format) {
  switch (format) {
    case WeightFormat::q8_0:
      return 128;
    case WeightFormat::q6_k:
      return 32;
    case WeightFormat::q4_0:
      return 8;
    default:
      return 0;
  }
}

// What a scale multiplies.
constexpr float code_value(WeightFormat format, uint32_t code) {
  if (format != WeightFormat::mxfp4) return float(int(code) - code_bias(format));
  constexpr float kMagnitudes[8] = {0, 0.5f, 1, 1.5f, 2, 3, 4, 6};
  return code < 8 ? kMagnitudes[code] : -kMagnitudes[code - 8];
}

}  // namespace quire::cuda
