#pragma once

#include "backend/cpu/i8mm/open_operands.h"

// The product of half an open panel with up to six tokens by `smmla`. Only for i8mm_matmul.cc, which is compiled for it.

namespace quire {
namespace {

// The sums of eight rows and up to six tokens, [row pairs][pairs of tokens]. They wait in memory between groups, for the
// tile needs all registers.
using TileSums = float[kRowPairs * kTilePairs][4];

template <size_t kPairs>
struct Totals {
  float32x4_t v[kRowPairs][kPairs];

  ALWAYS_INLINE explicit Totals(const TileSums& sums) {
#pragma GCC unroll 4
    for (size_t i = 0; i < kRowPairs; ++i) {
      for (size_t j = 0; j < kPairs; ++j) v[i][j] = vld1q_f32(sums[kPairs * i + j]);
    }
  }
  ALWAYS_INLINE void store(TileSums& sums) const {
#pragma GCC unroll 4
    for (size_t i = 0; i < kRowPairs; ++i) {
      for (size_t j = 0; j < kPairs; ++j) vst1q_f32(sums[kPairs * i + j], v[i][j]);
    }
  }
};

// The integer sums of a tile.
template <size_t kPairs>
struct Prefixes {
  int32x4_t v[kRowPairs][kPairs];
};

// The compiler would load operands as early as it can, and run out of registers.
ALWAYS_INLINE void hold_back_loads() {
  asm volatile("" ::: "memory");
}

// Eight columns.
template <size_t kPairs>
ALWAYS_INLINE void add_columns(const int8_t* codes, const int8_t* values, Prefixes<kPairs>& prefixes) {
  int8x16_t tokens[kPairs];
  for (size_t j = 0; j < kPairs; ++j) tokens[j] = vld1q_s8(values + 16 * j);
  for (size_t i = 0; i < kRowPairs; ++i) {
    const int8x16_t rows = vld1q_s8(codes + 16 * i);
    for (size_t j = 0; j < kPairs; ++j) prefixes.v[i][j] = vmmlaq_s32(prefixes.v[i][j], rows, tokens[j]);
    hold_back_loads();
  }
}

// Sixteen columns.
template <size_t kPairs>
ALWAYS_INLINE void add_sixteen(const int8_t*& codes, const int8_t*& values, Prefixes<kPairs>& prefixes) {
  add_columns<kPairs>(codes, values, prefixes);
  add_columns<kPairs>(codes + kEightCodes, values + 16 * kPairs, prefixes);
  codes += 2 * kEightCodes;
  values += 32 * kPairs;
}

template <size_t kPairs>
ALWAYS_INLINE void add_to_sums(const float32x4_t (&scaled)[kRowPairs][kPairs], const int8_t*& values,
                               TileSums& sums) {
  const float* scales = reinterpret_cast<const float*>(values);  // they follow the values of their group
  for (size_t j = 0; j < kPairs; ++j) {
    const float32x4_t scale = vld1q_f32(scales + 4 * j);
    for (size_t i = 0; i < kRowPairs; ++i) {
      float* sum = sums[kPairs * i + j];
      vst1q_f32(sum, vfmaq_f32(vld1q_f32(sum), scaled[i][j], scale));
    }
  }
  values += kPairs * 4 * sizeof(float);
}

// What minimums take away.
template <size_t kPairs>
__attribute__((noinline)) void add_mins(const FloatScales& half, const TileInputs<float>& inputs,
                                        size_t width, TileSums& sums) {
  Totals<kPairs> mins(sums);
  for (size_t b = 0; b < width / 32; ++b) {
    for (size_t i = 0; i < kRowPairs; ++i) {
      const float32x4_t min = vld1q_f32(half.mins[b] + 4 * i);
      for (size_t j = 0; j < kPairs; ++j)
        mins.v[i][j] = vfmaq_f32(mins.v[i][j], min, vld1q_f32(inputs.sums[b] + 4 * j));
    }
  }
  mins.store(sums);
}

// Adds what a sub-block comes to.
template <size_t kPairs>
ALWAYS_INLINE void add_scaled(const float*& differences, const Prefixes<kPairs>& prefixes,
                              float32x4_t (&scaled)[kRowPairs][kPairs]) {
  for (size_t i = 0; i < kRowPairs; ++i) {
    const float32x4_t difference = vld1q_f32(differences + 4 * i);
    for (size_t j = 0; j < kPairs; ++j)
      scaled[i][j] = vfmaq_f32(scaled[i][j], vreinterpretq_f32_s32(prefixes.v[i][j]), difference);
  }
  differences += 2 * kHalfRows;
}

// A group of `steps` steps of 32 columns, between whose codes there are kGap bytes.
template <size_t kSub, size_t kPairs, size_t kGap>
ALWAYS_INLINE void add_group(size_t steps, const float* starts, const float*& differences,
                             const int8_t*& codes, const int8_t*& values, TileSums& sums) {
  Prefixes<kPairs> prefixes;
  float32x4_t scaled[kRowPairs][kPairs];
  for (size_t i = 0; i < kRowPairs; ++i) {
    for (size_t j = 0; j < kPairs; ++j) {
      prefixes.v[i][j] = vdupq_n_s32(kMagicBits);
      scaled[i][j] = vld1q_f32(starts + 4 * i);
    }
  }
#pragma GCC unroll 1
  for (size_t step = 0; step < steps; ++step) {
    add_sixteen(codes, values, prefixes);
    if constexpr (kSub == 16) add_scaled(differences, prefixes, scaled);
    add_sixteen(codes, values, prefixes);
    add_scaled(differences, prefixes, scaled);
    codes += kGap;
    hold_back_loads();
  }
  add_to_sums(scaled, values, sums);
}

template <size_t kSub, size_t kGroup, bool kHasMin, size_t kGap, size_t kPairs>
__attribute__((noinline))  // one for all formats of these sizes
void multiply_tile(const FloatScales& half, const int8_t* codes, const TileInputs<float>& inputs, size_t width,
                   TileSums& sums, TileSums& min_sums) {
  static_assert(kSub == 32 || !kHasMin);
  const int8_t* values = inputs.groups;
  const float* differences = half.differences[0];
  const float* starts = half.starts[0];
  for (size_t group = 0; group < width / kGroup; ++group, starts += 2 * kHalfRows)
    add_group<kSub, kPairs, kGap>(kGroup / 32, starts, differences, codes, values, sums);
  if (width % kGroup != 0)
    add_group<kSub, kPairs, kGap>(width % kGroup / 32, starts, differences, codes, values, sums);
  if constexpr (kHasMin) add_mins<kPairs>(half, inputs, width, min_sums);
}

template <size_t kPairs>
ALWAYS_INLINE void add_totals(const int32_t* differences, const Prefixes<kPairs>& prefixes,
                              int32x4_t (&totals)[kRowPairs][kPairs]) {
  for (size_t i = 0; i < kRowPairs; ++i) {
    const int32x4_t difference = vld1q_s32(differences + 4 * i);
    for (size_t j = 0; j < kPairs; ++j) totals[i][j] = vmlaq_s32(totals[i][j], prefixes.v[i][j], difference);
  }
  hold_back_loads();
}

// What the minimums of a block come to, as floats.
template <size_t kSubs, size_t kPairs>
ALWAYS_INLINE void subtract_mins(const WholeScales& half, const TileInputs<int32_t>& inputs, size_t block,
                                 float32x4_t (&scaled)[kRowPairs][kPairs]) {
  for (size_t i = 0; i < kRowPairs; ++i) {
    const float32x4_t scale = vld1q_f32(half.min_scales[block] + 4 * i);
    for (size_t j = 0; j < kPairs; ++j) {
      int32x4_t low = vdupq_n_s32(0), high = vdupq_n_s32(0);
      for (size_t s = block * kSubs; s < (block + 1) * kSubs; s += 8) {
        const int8x16_t mins = vld1q_s8(half.mins[s] + 16 * i);
        low = vmmlaq_s32(low, mins, vld1q_s8(inputs.sums[s / 8][j][0]));
        high = vmmlaq_s32(high, mins, vld1q_s8(inputs.sums[s / 8][j][1]));
      }
      const int32x4_t total = vaddq_s32(low, vshlq_n_s32(high, 7));
      scaled[i][j] = vfmsq_f32(scaled[i][j], vcvtq_f32_s32(total), scale);
    }
  }
}

template <size_t kSub, size_t kGroup, bool kHasMin, size_t kGap, size_t kPairs>
__attribute__((noinline)) void multiply_tile(const WholeScales& half, const int8_t* codes,
                                             const TileInputs<int32_t>& inputs, size_t width, TileSums& sums,
                                             TileSums&) {
  const int8_t* values = inputs.groups;
  const int32_t* differences = half.differences[0];
  for (size_t b = 0; b < width / kGroup; ++b) {
    Prefixes<kPairs> prefixes = {};
    int32x4_t totals[kRowPairs][kPairs] = {};
    for (const int8_t* end = codes + kPanelRows * kGroup; codes < end; differences += 2 * kHalfRows) {
      add_sixteen(codes, values, prefixes);
      if constexpr (kSub == 16) {
        add_totals(differences, prefixes, totals);
        differences += 2 * kHalfRows;
      }
      add_sixteen(codes, values, prefixes);
      add_totals(differences, prefixes, totals);
    }
    codes += kGap;
    float32x4_t scaled[kRowPairs][kPairs];
    for (size_t i = 0; i < kRowPairs; ++i) {
      const float32x4_t scale = vld1q_f32(half.scales[b] + 4 * i);
      for (size_t j = 0; j < kPairs; ++j) scaled[i][j] = vmulq_f32(vcvtq_f32_s32(totals[i][j]), scale);
    }
    if constexpr (kHasMin) subtract_mins<kGroup / kSub>(half, inputs, b, scaled);
    add_to_sums(scaled, values, sums);
  }
}

// out[token * kPanelRows + row]
template <bool kHasMin, size_t kPairs>
void finish(const TileSums& sums, const TileSums& min_sums, float* out) {
  const auto product = [&](size_t i, size_t j) {
    const float32x4_t sum = vld1q_f32(sums[kPairs * i + j]);
    return kHasMin ? vsubq_f32(sum, vld1q_f32(min_sums[kPairs * i + j])) : sum;
  };
  for (size_t j = 0; j < kPairs; ++j) {
    for (size_t i = 0; i < kRowPairs; i += 2) {
      const float32x4_t top = product(i, j), bottom = product(i + 1, j);
      vst1q_f32(out + 2 * j * kPanelRows + 2 * i, vuzp1q_f32(top, bottom));
      vst1q_f32(out + (2 * j + 1) * kPanelRows + 2 * i, vuzp2q_f32(top, bottom));
    }
  }
}

}  // namespace
}  // namespace quire
