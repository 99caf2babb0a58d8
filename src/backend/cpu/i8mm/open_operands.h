#pragma once

#include <cstring>
#include <type_traits>

#include <arm_neon.h>

#include "backend/cpu/i8mm/pair_reader.h"
#include "backend/cpu/matmul/stream_fetch.h"

// Panels and inputs as `smmla` wants them: its result is a vector {row 0 token 0, row 0 token 1, row 1 token 0, row 1
// token 1}; so here whatever belongs to a row stands in a vector as {row 0, row 0, row 1, row 1}, and whatever belongs to
// a token as {token 0, token 1, token 0, token 1}. Only for i8mm_matmul.cc, which is compiled for it.

namespace quire {
namespace {

constexpr size_t kHalfRows = kPanelRows / 2;  // a tile has the rows of half a panel,
constexpr size_t kRowPairs = kHalfRows / 2;
constexpr size_t kTileTokens = 6;  // and 3 pairs of tokens: 12 integer and 12 float sums, 7 operands
constexpr size_t kTilePairs = kTileTokens / 2;

// What is worked on at a time: an opened panel and a tile's inputs stay in the first-level cache, which leaves room for
// what is fetched meanwhile, and the tokens' inputs, interleaved once for all panels of the part, in the second.
constexpr size_t kPartCols = 1024;
constexpr size_t kPartTokens = 516;
constexpr size_t kPartPanels = 32;
constexpr size_t kPartTiles = kPartTokens / kTileTokens;
constexpr size_t kFewTiles = 48;  // of 1024 columns: half of a second-level cache of 1 MB
static_assert(kPartCols % 256 == 0 && kPartTokens % kTileTokens == 0 &&
              kFewTiles <= kPartTiles);  // parts end with groups and tiles

constexpr size_t kPartSubs = kPartCols / 16;    // at most
constexpr size_t kPartGroups = kPartCols / 64;  // at most

template <class Format>
using Panel = std::conditional_t<kHasPairs<Format>, PairBlock<Format>, PackedBlock<Format>>;

// Whether codes are in the panel as a tile wants them.
template <class Format>
inline constexpr bool kIsOpen = kHasPairs<Format> && !PairBlock<Format>::kIsNibbles;

constexpr size_t smaller(size_t a, size_t b) {
  return a < b ? a : b;
}

// ---- panels --------------------------------------------------------------------------------------------------------

// What scales and minimums of eight rows come to, where they are floats
struct FloatScales {
  using Sum = float;
  float starts[kPartGroups][2 * kHalfRows];     // [groups]: -kMagic * the first scale
  float differences[kPartSubs][2 * kHalfRows];  // [sub-blocks]: the scale less the next in the group
  float mins[kPartSubs][2 * kHalfRows];         // [sub-blocks]
};

// and in blocks of 256, whose sub-scales are whole numbers.
struct WholeScales {
  using Sum = int32_t;
  float scales[kPartGroups][2 * kHalfRows];       // [blocks]
  float min_scales[kPartGroups][2 * kHalfRows];   // [blocks]
  int32_t differences[kPartSubs][2 * kHalfRows];  // [sub-blocks]: the scale less the next in the block
  // [eights of sub-blocks][rows][8], for products as those of codes
  alignas(16) int8_t mins[kPartSubs][kHalfRows];
};

constexpr size_t kEightCodes = 8 * kPanelRows;  // bytes of eight columns

// A piece of a panel's columns, ready for the product.
template <class Scales>
struct OpenPiece {
  Scales halves[2];
  alignas(64) int8_t codes[kPanelRows * kPartCols];  // [cols / 8][8 pairs][2 rows][8 columns]
};

// Columns 8 g to 8 g + 7 of a step of 32 that begins at `column`.
template <class Format, size_t g>
ALWAYS_INLINE void open_columns(const uint8_t* step, int8x16_t table, int8_t* codes) {
  for (size_t i = 0; i < kVectors; ++i) {
    const int32x4_t left = vreinterpretq_s32_s8(Reader<Format>::template codes<2 * g>(step, i, table));
    const int32x4_t right = vreinterpretq_s32_s8(Reader<Format>::template codes<2 * g + 1>(step, i, table));
    int8_t* out = codes + kEightCodes * g + 32 * i;
    vst1q_s8(out, vreinterpretq_s8_s32(vzip1q_s32(left, right)));
    vst1q_s8(out + 16, vreinterpretq_s8_s32(vzip2q_s32(left, right)));
  }
}

ALWAYS_INLINE void store_twice(float32x4_t rows, float* out) {
  vst1q_f32(out, vzip1q_f32(rows, rows));
  vst1q_f32(out + 4, vzip2q_f32(rows, rows));
}
ALWAYS_INLINE void store_twice(int16x4_t rows, int32_t* out) {
  const int32x4_t wide = vmovl_s16(rows);
  vst1q_s32(out, vzip1q_s32(wide, wide));
  vst1q_s32(out + 4, vzip2q_s32(wide, wide));
}

// What belongs to the rows of a panel, to an array of each of its halves.
template <class Store>
ALWAYS_INLINE void store_halves(const PerRow& rows, const Store& array) {
  for (size_t i = 0; i < kVectors; ++i) store_twice(rows.v[i], array(i / 2) + 8 * (i % 2));
}
template <class Store>
ALWAYS_INLINE void store_halves(int16x8_t low, int16x8_t high, const Store& array) {
  store_twice(vget_low_s16(low), array(0));
  store_twice(vget_high_s16(low), array(0) + 8);
  store_twice(vget_low_s16(high), array(1));
  store_twice(vget_high_s16(high), array(1) + 8);
}

template <class Format, size_t kGroup>
void open_scales(const uint8_t* panel, size_t cols, size_t begin, size_t width, FloatScales* halves) {
  using Packed = Panel<Format>;
  constexpr size_t kSub = Packed::kSub;
  const auto scales_at = [panel](size_t column) {
    return Reader<Format>::block_scales(block_at<Packed>(panel, column) +
                                        Packed::float_scales_at(column % Packed::kValues));
  };
  PerRow scale = scales_at(begin);
  for (size_t c = 0; c < width; c += kSub) {
    const size_t after = begin + c + kSub;
    const PerRow next = after < cols ? scales_at(after) : PerRow{};
    if (c % kGroup == 0)
      store_halves(times(scale, -kMagic), [&](size_t h) { return halves[h].starts[c / kGroup]; });
    if (after % kGroup != 0)
      for (size_t i = 0; i < kVectors; ++i) scale.v[i] = vsubq_f32(scale.v[i], next.v[i]);
    store_halves(scale, [&](size_t h) { return halves[h].differences[c / kSub]; });
    scale = next;
    if constexpr (Packed::Uniform::kHasMin) {
      const uint8_t* block = block_at<Packed>(panel, begin + c);
      store_halves(Reader<Format>::mins(block, 0), [&](size_t h) { return halves[h].mins[c / 32]; });
    }
  }
}

// Those of eight sub-blocks, which are packed by twos.
ALWAYS_INLINE void open_mins(const uint8_t* packed, size_t sub, WholeScales* halves) {
  for (size_t h = 0; h < 2; ++h) {
    uint16x8x4_t pairs;
    for (size_t i = 0; i < 4; ++i) pairs.val[i] = vreinterpretq_u16_u8(vld1q_u8(packed + 32 * i + 16 * h));
    vst4q_u16(reinterpret_cast<uint16_t*>(halves[h].mins[sub]), pairs);
  }
}

template <class Format, size_t kGroup>
void open_scales(const uint8_t* panel, size_t, size_t begin, size_t width, WholeScales* halves) {
  using Packed = Panel<Format>;
  using Read = Reader<Format>;
  const uint8_t* block = panel + begin / kGroup * Packed::kBytes;
  for (size_t b = 0; b < width / kGroup; ++b, block += Packed::kBytes) {
    store_halves(Read::block_scales(block), [&](size_t h) { return halves[h].scales[b]; });
    for (size_t j = 0; j < Packed::kSubs; ++j) {
      const int8x16_t scale = Read::sub_scales(block, j);
      const int8x16_t next = j + 1 < Packed::kSubs ? Read::sub_scales(block, j + 1) : vdupq_n_s8(0);
      store_halves(vsubl_s8(vget_low_s8(scale), vget_low_s8(next)), vsubl_high_s8(scale, next),
                   [&](size_t h) { return halves[h].differences[b * Packed::kSubs + j]; });
    }
    if constexpr (Packed::Uniform::kHasMin) {
      store_halves(PerRow::load_f16(block + Packed::kSecond),
                   [&](size_t h) { return halves[h].min_scales[b]; });
      if constexpr (kHasPairs<Format>) {
        for (size_t h = 0; h < 2; ++h)
          std::memcpy(halves[h].mins[b * Packed::kSubs], block + Packed::kSubMins + 64 * h, 64);
      } else {
        for (size_t j = 0; j < Packed::kSubs; j += 8)
          open_mins(block + Packed::kSubMins + 16 * j, b * Packed::kSubs + j, halves);
      }
    }
  }
}

// A step of 32 columns.
template <class Format>
ALWAYS_INLINE void open_step(const uint8_t* step, int8x16_t table, int8_t* codes) {
  if constexpr (kHasPairs<Format>) {
    static_assert(PairBlock<Format>::kIsNibbles);
    for (size_t v = 0; v < 16; ++v) {
      const uint8x16_t both = vld1q_u8(step + 16 * v);
      uint8x16_t low, high;
      if constexpr (PairBlock<Format>::kIsSigned) {  // sixteen times
        low = veorq_u8(vshlq_n_u8(both, 4), vdupq_n_u8(0x80));
        high = vandq_u8(both, vdupq_n_u8(0xf0));
      } else {
        low = vandq_u8(both, vdupq_n_u8(15));
        high = vshrq_n_u8(both, 4);
      }
      int8_t* out = codes + v / 4 * kEightCodes + v % 4 * 16;
      vst1q_s8(out, vreinterpretq_s8_u8(low));
      vst1q_s8(out + 64, vreinterpretq_s8_u8(high));
    }
  } else {
    open_columns<Format, 0>(step, table, codes);
    open_columns<Format, 1>(step, table, codes);
    open_columns<Format, 2>(step, table, codes);
    open_columns<Format, 3>(step, table, codes);
  }
}

// Columns [begin, begin + width) of a panel of `cols`. Bytes are used where they are. What is opened next lies `next_bytes` on.
template <class Format, size_t kGroup, class Scales>
void open_panel(const uint8_t* panel, size_t cols, size_t begin, size_t width, size_t next_bytes,
                OpenPiece<Scales>& open) {
  using Packed = Panel<Format>;
  const int8x16_t table = Reader<Format>::table();
  for (size_t c = 0; !kIsOpen<Format> && c < width; c += 32) {
    const uint8_t* step = step_at<Packed>(panel, begin + c);
    for (size_t line = 0; line < Packed::kStepBytes; line += 64)
      fetch_line<FarFetch>(step + next_bytes + line);
    if constexpr (!kIsOpen<Format>) open_step<Format>(step, table, open.codes + kPanelRows * c);
  }
  open_scales<Format, kGroup>(panel, cols, begin, width, open.halves);
}

// ---- inputs --------------------------------------------------------------------------------------------------------

// Up to three pairs of tokens; where a token is missing, the one before stands in for it. One stream: the values of a group,
// [cols / 8][pairs][2 tokens][8 columns], and then its scales, [pairs][4].
constexpr size_t group_bytes(size_t group, size_t pairs) {
  return pairs * (2 * group + 4 * sizeof(float));
}

// What minimums are multiplied with: floats, [sub-blocks][pairs][4]; or whole numbers of 13 bits, which are 128 times one
// byte plus another, [eights of sub-blocks][pairs][the other, the one][2 tokens][8 sub-blocks].
using FloatInputSums = float[kPartSubs][2 * kTileTokens];
using WholeInputSums = int8_t[kPartSubs / 8][kTilePairs][2][16];

template <class Sum>
struct TileInputs {
  alignas(64) int8_t groups[kPartGroups * group_bytes(64, kTilePairs)];  // at most
  std::conditional_t<std::is_same_v<Sum, float>, FloatInputSums, WholeInputSums> sums;
};

ALWAYS_INLINE void store_alternating(float even, float odd, float* out) {
  vst1q_f32(out, vzip1q_f32(vdupq_n_f32(even), vdupq_n_f32(odd)));
}
// Those of columns [begin, begin + width) of pair j.
template <size_t kSub>
ALWAYS_INLINE void interleave_sums(const Q8Row& even, const Q8Row& odd, size_t begin, size_t width, size_t j,
                                   FloatInputSums& out) {
  for (size_t s = 0; kSub * s < width; ++s)
    store_alternating(even.scaled_sums[begin / kSub + s], odd.scaled_sums[begin / kSub + s], out[s] + 4 * j);
}
template <size_t kSub>
ALWAYS_INLINE void interleave_sums(const Q8Row& even, const Q8Row& odd, size_t begin, size_t width, size_t j,
                                   WholeInputSums& out) {
  const auto sums = [](const Q8Row& row) { return kSub == 32 ? row.sums32 : row.sums16; };
  for (size_t s = 0; kSub * s < width; s += 8) {
    const int16x8_t first = vld1q_s16(sums(even) + begin / kSub + s);
    const int16x8_t second = vld1q_s16(sums(odd) + begin / kSub + s);
    const int16x8_t first_high = vrshrq_n_s16(first, 7), second_high = vrshrq_n_s16(second, 7);
    const int16x8_t first_low = vsubq_s16(first, vshlq_n_s16(first_high, 7));
    const int16x8_t second_low = vsubq_s16(second, vshlq_n_s16(second_high, 7));
    vst1q_s8(out[s / 8][j][0], vcombine_s8(vmovn_s16(first_low), vmovn_s16(second_low)));
    vst1q_s8(out[s / 8][j][1], vcombine_s8(vmovn_s16(first_high), vmovn_s16(second_high)));
  }
}

// Columns [begin, begin + width) of 2 * kPairs rows.
template <size_t kSub, size_t kGroup, bool kHasMin, size_t kPairs, class Sum>
void interleave(const Q8Row* rows, size_t begin, size_t width, TileInputs<Sum>& out) {
  for (size_t j = 0; j < kPairs; ++j) {
    const Q8Row even = rows[2 * j], odd = rows[2 * j + 1];
    int8_t* group = out.groups;
    for (size_t g = 0; g < width; g += kGroup, group += group_bytes(kGroup, kPairs)) {
      const size_t from = begin + g, columns = smaller(kGroup, width - g);
#pragma GCC unroll 4
      for (size_t c = 0; c < columns; c += 16) {
        const int64x2_t left = vreinterpretq_s64_s8(vld1q_s8(even.values + from + c));
        const int64x2_t right = vreinterpretq_s64_s8(vld1q_s8(odd.values + from + c));
        int8_t* values = group + 2 * kPairs * c + 16 * j;
        vst1q_s8(values, vreinterpretq_s8_s64(vzip1q_s64(left, right)));
        vst1q_s8(values + 16 * kPairs, vreinterpretq_s8_s64(vzip2q_s64(left, right)));
      }
      float* scales = reinterpret_cast<float*>(group + 2 * kPairs * columns);
      store_alternating(even.scales[from / kGroup], odd.scales[from / kGroup], scales + 4 * j);
    }
    if constexpr (kHasMin) interleave_sums<kSub>(even, odd, begin, width, j, out.sums);
  }
}

}  // namespace
}  // namespace quire
