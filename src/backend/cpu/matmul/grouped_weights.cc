#include "backend/cpu/matmul/grouped_weights.h"

#include <algorithm>
#include <bit>
#include <cmath>

namespace quire {
namespace {

constexpr size_t kSub = 32;               // columns that share a ratio
constexpr float kLeastPeak = 0x1p-90f;    // weights below this count as zero
constexpr uint16_t kNotANumber = 0x7fc0;  // of bf16

// 1.5 * 2^23 leaves the rounded value at the bottom of the float's bits. REQUIRES: |value| < 2^22.
int nearest(float value) {
  return std::bit_cast<int32_t>(value + 0x1.8p23f) - std::bit_cast<int32_t>(0x1.8p23f);
}

uint16_t bf16_above(float value) {
  return uint16_t((std::bit_cast<uint32_t>(value) + 0xffffu) >> 16);
}

float from_bf16(uint16_t bits) {
  return std::bit_cast<float>(uint32_t(bits) << 16);
}

// Some columns of a row as the file has them: value = scale * code + offset.
struct FileColumns {
  size_t count;
  int8_t codes[kGroupedBlockCols];
  float scales[kGroupedBlockCols / 16], offsets[kGroupedBlockCols / 16];  // of each sub-block
};

template <class Format>
void read_columns(const uint8_t* row, size_t col, size_t cols, FileColumns& out) {
  out.count = std::min(kGroupedBlockCols, cols - col);
  const uint8_t* block = row + col / Format::kValues * Format::kBytes;
  if constexpr (In256<Format>) {
    Codes256 raw;
    Format::unpack(block, raw);
    std::memcpy(out.codes, raw.codes, sizeof(raw.codes));
    for (size_t j = 0; j < kGroupedBlockCols / Format::kSubValues; ++j) {
      out.scales[j] = raw.scale * float(raw.sub_scales[j]);
      out.offsets[j] = 0;
      if constexpr (Format::kHasMin) out.offsets[j] = -(raw.min_scale * float(raw.sub_mins[j]));
    }
  } else if constexpr (HasSubFloats<Format>) {
    constexpr size_t kSubs = Format::kValues / Format::kSubValues;
    for (size_t j = 0; j < out.count / Format::kValues; ++j, block += Format::kBytes) {
      format::Codes64 raw;
      Format::unpack(block, raw);
      std::memcpy(out.codes + j * Format::kValues, raw.codes, Format::kValues);
      std::copy_n(raw.scales, kSubs, out.scales + j * kSubs);
      std::fill_n(out.offsets + j * kSubs, kSubs, 0.0f);
    }
  } else {
    for (size_t j = 0; j < out.count / Format::kValues; ++j, block += Format::kBytes) {
      Codes32 raw;
      Format::unpack(block, raw);
      std::memcpy(out.codes + j * Format::kValues, raw.codes, Format::kValues);
      out.scales[j] = raw.scale;
      out.offsets[j] = 0;
      if constexpr (Format::kHasOffset) out.offsets[j] = raw.offset;
    }
  }
}

// The index of four bits that stands for a code.
template <class Format>
uint8_t index_of(int8_t code) {
  constexpr WeightCodes kCodes = kWeightCodes<Format>;
  if constexpr (kCodes.is_table) {
    for (size_t i = 0; i < 16; ++i) {
      if (kCodes.code(i) == code) return uint8_t(i);
    }
    return 0;
  } else {
    return uint8_t(code - kCodes.lowest);
  }
}

// All of them, so that packing does not search.
template <class Format>
struct IndexTable {
  uint8_t of[256];
  IndexTable() {
    for (size_t i = 0; i < 256; ++i) of[i] = uint8_t(index_of<Format>(int8_t(uint8_t(i))) & 15);
  }
};

// The largest magnitude that a sub-block's indexes can stand for.
template <class Format>
float largest_of(float scale, float offset) {
  if constexpr (kGroupedCoding<Format> == GroupedCoding::affine) {
    return std::max(std::fabs(offset), std::fabs(15.0f * scale + offset));
  } else {
    // Entries grow to the seventh; of the others the first is the largest, and negative.
    constexpr int kMost = std::max(-int(grouped_entry<Format>(0)), int(grouped_entry<Format>(7)));
    return std::fabs(scale) * float(kMost >> kTableShift<Format>);
  }
}

}  // namespace

template <class Format, size_t kGroup>
void GroupedRowBlock<Format, kGroup>::read(const uint8_t* row, size_t col, size_t cols) {
  constexpr GroupedCoding kCoding = Packed::kCoding;
  constexpr size_t kFileSub = kSubValues<Format>;
  FileColumns file;
  read_columns<Format>(row, col, cols, file);
  *this = {};
  for (size_t begin = 0; begin < file.count; begin += kGroup) {
    const size_t end = std::min(begin + kGroup, file.count);
    float most = 0;
    bool is_finite = true;
    const auto look_at = [&](float magnitude) {
      is_finite = is_finite && magnitude < INFINITY;
      most = std::max(most, magnitude);
    };
    float values[kGroup];
    if constexpr (kCoding == GroupedCoding::byte) {
      for (size_t c = begin; c < end; ++c) {
        values[c - begin] = file.scales[c / kFileSub] * float(file.codes[c]) + file.offsets[c / kFileSub];
        look_at(std::fabs(values[c - begin]));
      }
    } else {
      for (size_t j = begin / kSub; j < end / kSub; ++j)
        look_at(largest_of<Format>(file.scales[j], file.offsets[j]));
    }
    uint16_t& scale = scales[begin / kGroup];
    scale = !is_finite ? kNotANumber : most < kLeastPeak ? uint16_t(0) : bf16_above(most / 127.0f);
    if (!is_finite || scale == 0) continue;
    const float inverse = 1.0f / from_bf16(scale);
    if constexpr (kCoding == GroupedCoding::byte) {
      for (size_t c = begin; c < end; ++c) codes[c] = int8_t(nearest(values[c - begin] * inverse));
    } else {
      static const IndexTable<Format> table;
      for (size_t j = begin / kSub; j < end / kSub; ++j) {
        constexpr int kOne = kCoding == GroupedCoding::table ? 1 << (15 - kTableShift<Format>) : 256;
        const int ratio = nearest(file.scales[j] * inverse * float(kOne));
        const int offset = nearest(file.offsets[j] * inverse * float(kOne)) + 128;
        ratios[j] = int16_t(ratio);
        offsets[j] = int16_t(kCoding == GroupedCoding::affine ? offset : 0);
        for (size_t c = kSub * j; c < kSub * (j + 1); ++c) {
          indexes[c] = table.of[uint8_t(file.codes[c])];
          if constexpr (kCoding == GroupedCoding::table) {
            codes[c] = int8_t((grouped_entry<Format>(indexes[c]) * ratio + (1 << 14)) >> 15);
          } else {
            codes[c] = int8_t((indexes[c] * ratio + offset) >> 8);
          }
        }
      }
    }
  }
}

namespace {

template <class Format, size_t kGroup>
size_t panel_bytes(size_t cols) {
  using Packed = GroupedBlock<Format, kGroup>;
  const size_t steps = grouped_steps(cols);
  return (steps + Packed::kSteps - 1) / Packed::kSteps * Packed::kStart + steps * Packed::kStepBytes;
}

// The indexes of a row in a step.
void put_indexes(const uint8_t* indexes, size_t row, uint8_t* pairs) {
  uint8_t* pair = pairs + row / 2 * kGroupedStepCols;
  for (size_t c = 0; c < kGroupedStepCols; ++c) {
    const unsigned index = indexes[c];
    if (row % 2 == 0) {
      pair[c] = uint8_t(pair[c] | index << 2);
    } else {
      pair[c] = uint8_t(pair[c] | (index & 3) << 6);
      uint8_t& after = pair[c / 8 * 8 + (c + 1) % 8];
      after = uint8_t(after | index >> 2);
    }
  }
}

template <class Format, size_t kGroup>
void put_block(const GroupedRowBlock<Format, kGroup>& block, size_t row, size_t steps, uint8_t* out) {
  using Packed = GroupedBlock<Format, kGroup>;
  for (size_t g = 0; g < Packed::kGroups; ++g) {
    uint8_t* place = out + (g * kPanelRows + row) * sizeof(uint16_t);
    std::memcpy(place, &block.scales[g], sizeof(uint16_t));
    if constexpr (Packed::kHasSums) {
      int16_t sum = 0;
      for (size_t c = g * kGroup; c < (g + 1) * kGroup; ++c) sum = int16_t(sum + block.codes[c]);
      std::memcpy(place + Packed::kSums, &sum, sizeof(sum));
    }
  }
  uint8_t* step = out + Packed::kStart;
  for (size_t s = 0; s < steps; ++s, step += Packed::kStepBytes) {
    if constexpr (Packed::kCoding == GroupedCoding::byte) {
      std::memcpy(step + row * kGroupedStepCols, block.codes + s * kGroupedStepCols, kGroupedStepCols);
    } else {
      std::memcpy(step + 4 * row, block.ratios + 2 * s, 4);
      if constexpr (Packed::kCoding == GroupedCoding::affine) {
        const uint16_t offsets[2] = {uint16_t(block.offsets[2 * s] ^ 0x8000),
                                     uint16_t(block.offsets[2 * s + 1] ^ 0x8000)};
        std::memcpy(step + Packed::kOffsets + 4 * row, offsets, sizeof(offsets));
      }
      put_indexes(block.indexes + s * kGroupedStepCols, row, step + Packed::kIndexes);
    }
  }
}

template <class Format, size_t kGroup>
void pack_panel(const MatrixView& weight, size_t panel, std::byte* bytes) {
  using Packed = GroupedBlock<Format, kGroup>;
  uint8_t* out = reinterpret_cast<uint8_t*>(bytes);
  std::memset(out, 0, panel_bytes<Format, kGroup>(weight.cols));
  const size_t begin = panel * kPanelRows, end = std::min(begin + kPanelRows, weight.rows);
  const size_t steps = grouped_steps(weight.cols);
  for (size_t r = begin; r < end; ++r) {
    const uint8_t* row = reinterpret_cast<const uint8_t*>(weight.row(r));
    GroupedRowBlock<Format, kGroup> block;
    for (size_t s = 0; s < steps; s += Packed::kSteps) {
      block.read(row, s * kGroupedStepCols, weight.cols);
      put_block(block, r - begin, std::min(Packed::kSteps, steps - s),
                out + s / Packed::kSteps * Packed::kBytes);
    }
  }
}

}  // namespace

template <class Format, size_t kGroup>
PanelFormat grouped_panel_format() {
  return {.panel_bytes = panel_bytes<Format, kGroup>, .pack = pack_panel<Format, kGroup>};
}

#define QUIRE_FORMAT(dtype, Format, activation)                                              \
  template struct GroupedRowBlock<format::Format, group_values(ActivationForm::activation)>; \
  template PanelFormat grouped_panel_format<format::Format, group_values(ActivationForm::activation)>();
#include "backend/cpu/matmul/grouped_formats.inc"
#undef QUIRE_FORMAT

}  // namespace quire
