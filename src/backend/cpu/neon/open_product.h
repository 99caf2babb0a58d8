#pragma once

#include <arm_neon.h>

#include "backend/cpu/matmul/panel_matmul.h"
#include "backend/cpu/neon/panel_reader.h"

// The product of a panel that is unpacked once with many tokens by `sdot`. Only for dot_matmul.cc, which is compiled for
// it.

namespace quire {
namespace {

ALWAYS_INLINE void store_differences(int8x16_t scale, int8x16_t next, int32_t* out) {
  const int16x8_t low = vsubl_s8(vget_low_s8(scale), vget_low_s8(next)), high = vsubl_high_s8(scale, next);
  vst1q_s32(out, vmovl_s16(vget_low_s16(low)));
  vst1q_s32(out + 4, vmovl_high_s16(low));
  vst1q_s32(out + 8, vmovl_s16(vget_low_s16(high)));
  vst1q_s32(out + 12, vmovl_high_s16(high));
}

template <class Format, size_t g>
ALWAYS_INLINE void open_columns(const uint8_t* step, int8x16_t table, uint8_t* codes) {
  for (size_t i = 0; i < kVectors; ++i) {
    vst1q_u8(codes + 64 * g + 16 * i, vreinterpretq_u8_s8(Reader<Format>::template codes<g>(step, i, table)));
  }
}

// Of sub-blocks with floats. Each is read once, for conversions are slow.
template <class Format>
void open_scales(const uint8_t* panel, size_t cols, size_t group, const OpenPanel& out) {
  using Packed = PackedBlock<Format>;
  using Read = Reader<Format>;
  constexpr float kShare = Packed::Uniform::kScaleShare;
  constexpr size_t kSub = Packed::kSub;
  PerRow whole = Read::whole_scales(panel);
  for (size_t c = 0; c < cols; c += kSub) {
    const size_t after = c + kSub;
    const PerRow next = after < cols ? Read::whole_scales_at(panel, after) : PerRow{};
    const PerRow scale = times(whole, kShare);
    PerRow difference = scale;
    if (after % group != 0) {
      const PerRow less = times(next, kShare);
      for (size_t i = 0; i < kVectors; ++i) difference.v[i] = vsubq_f32(scale.v[i], less.v[i]);
    }
    if constexpr (Packed::Uniform::kHasMin) {
      Read::moved_mins(block_at<Packed>(panel, c), whole).store(out.mins + kPanelRows * (c / 32));
    }
    if (c % group == 0) times(scale, -kMagic).store(out.starts + kPanelRows * (c / group));
    difference.store(out.differences + kPanelRows * (c / kSub));
    whole = next;
  }
}

template <In256 Format>
void open_scales(const uint8_t* panel, size_t cols, size_t, const OpenPanel& out) {
  using Packed = PackedBlock<Format>;
  using Read = Reader<Format>;
  for (size_t b = 0; b < cols / Packed::kValues; ++b, panel += Packed::kBytes) {
    Read::open_block(panel, b, out);
    for (size_t j = 0; j < Packed::kSubs; ++j) {
      const int8x16_t next = j + 1 < Packed::kSubs ? Read::sub_scales(panel, j + 1) : vdupq_n_s8(0);
      int32_t* factors = out.sub_factors + kPanelRows * (b * Packed::kSubs + j);
      store_differences(Read::sub_scales(panel, j), next, factors);
    }
  }
}

template <class Format, ActivationForm kForm>
void open_panel(const uint8_t* panel, size_t cols, const OpenPanel& out) {
  using Packed = PackedBlock<Format>;
  const int8x16_t table = Reader<Format>::table();
  for (size_t c = 0; c < cols; c += 32) {
    const uint8_t* step = step_at<Packed>(panel, c);
    uint8_t* codes = out.codes + kPanelRows * c;
    open_columns<Format, 0>(step, table, codes);
    open_columns<Format, 1>(step, table, codes);
    open_columns<Format, 2>(step, table, codes);
    open_columns<Format, 3>(step, table, codes);
    open_columns<Format, 4>(step, table, codes);
    open_columns<Format, 5>(step, table, codes);
    open_columns<Format, 6>(step, table, codes);
    open_columns<Format, 7>(step, table, codes);
  }
  open_scales<Format>(panel, cols, group_values(kForm), out);
}

// The integer sums of two vectors of rows by kTokens.
template <size_t kTokens>
struct Prefixes {
  int32x4_t v[kTokens][2];
};

template <size_t kLane, size_t kTokens>
ALWAYS_INLINE void add_lane(const uint8_t* codes, const int8x16_t* values, Prefixes<kTokens>& prefixes) {
  const int8x16_t low = vreinterpretq_s8_u8(vld1q_u8(codes + 64 * kLane));
  const int8x16_t high = vreinterpretq_s8_u8(vld1q_u8(codes + 64 * kLane + 16));
  for (size_t t = 0; t < kTokens; ++t) {
    prefixes.v[t][0] = vdotq_laneq_s32(prefixes.v[t][0], low, values[t], kLane);
    prefixes.v[t][1] = vdotq_laneq_s32(prefixes.v[t][1], high, values[t], kLane);
  }
}

// Sixteen columns. The barrier keeps the compiler from loading ahead of what the registers hold.
template <size_t kTokens>
ALWAYS_INLINE void add_opened(const uint8_t* codes, const int8_t* const* inputs, size_t c,
                              Prefixes<kTokens>& prefixes) {
  int8x16_t values[kTokens];
  for (size_t t = 0; t < kTokens; ++t) values[t] = vld1q_s8(inputs[t] + c);
  add_lane<0>(codes, values, prefixes);
  add_lane<1>(codes, values, prefixes);
  add_lane<2>(codes, values, prefixes);
  add_lane<3>(codes, values, prefixes);
  asm volatile("" ::: "memory");
}

// Sums over groups wait in memory: registers are for the tile.
ALWAYS_INLINE void add_to(float* sum, float32x4_t scaled, float factor) {
  vst1q_f32(sum, vfmaq_n_f32(vld1q_f32(sum), scaled, factor));
}

// ---- blocks whose scales are floats --------------------------------------------------------------------------------------------------

template <size_t kTokens>
ALWAYS_INLINE void subtract_mins(const float* min, size_t blocks, const Q8Row* inputs, size_t first,
                                 float (*out)[kPanelRows]) {
  float32x4_t min_sums[kTokens][2] = {};
  for (size_t b = 0; b < blocks; ++b, min += kPanelRows) {
    const float32x4_t low = vld1q_f32(min), high = vld1q_f32(min + 4);
    for (size_t t = 0; t < kTokens; ++t) {
      min_sums[t][0] = vfmaq_n_f32(min_sums[t][0], low, inputs[t].scaled_sums[b]);
      min_sums[t][1] = vfmaq_n_f32(min_sums[t][1], high, inputs[t].scaled_sums[b]);
    }
  }
  for (size_t t = 0; t < kTokens; ++t) {
    for (size_t i = 0; i < 2; ++i) {
      float* sum = out[t] + first + 4 * i;
      vst1q_f32(sum, vsubq_f32(vld1q_f32(sum), min_sums[t][i]));
    }
  }
}

// Rows [first, first + 8) of the panel with kTokens inputs.
template <size_t kSub, ActivationForm kForm, bool kHasMin, size_t kTokens>
void multiply_tile(const OpenPanel& panel, size_t first, size_t cols, const Q8Row* inputs,
                   float (*out)[kPanelRows]) {
  constexpr size_t kGroup = group_values(kForm);
  static_assert(kSub == 32 || !kHasMin);
  const int8_t* values[kTokens];
  const float* scales[kTokens];
  for (size_t t = 0; t < kTokens; ++t) {
    values[t] = inputs[t].values;
    scales[t] = inputs[t].scales;
    vst1q_f32(out[t] + first, vdupq_n_f32(0.0f));
    vst1q_f32(out[t] + first + 4, vdupq_n_f32(0.0f));
  }
  const uint8_t* codes = panel.codes + 4 * first;
  const float* start = panel.starts + first;
  const float* differences = panel.differences + first;
  for (size_t begin = 0, g = 0; begin < cols; begin += kGroup, ++g, start += kPanelRows) {
    const size_t end = begin + kGroup < cols ? begin + kGroup : cols;
    Prefixes<kTokens> prefixes;
    float32x4_t scaled[kTokens][2];
    for (size_t t = 0; t < kTokens; ++t) {
      for (size_t i = 0; i < 2; ++i) {
        prefixes.v[t][i] = vdupq_n_s32(kMagicBits);
        scaled[t][i] = vld1q_f32(start + 4 * i);
      }
    }
    for (size_t c = begin; c < end; c += kSub, codes += kSub * kPanelRows) {
      add_opened(codes, values, c, prefixes);
      if constexpr (kSub == 32) add_opened(codes + 16 * kPanelRows, values, c + 16, prefixes);
      const float32x4_t low = vld1q_f32(differences), high = vld1q_f32(differences + 4);
      for (size_t t = 0; t < kTokens; ++t) {
        scaled[t][0] = vfmaq_f32(scaled[t][0], vreinterpretq_f32_s32(prefixes.v[t][0]), low);
        scaled[t][1] = vfmaq_f32(scaled[t][1], vreinterpretq_f32_s32(prefixes.v[t][1]), high);
      }
      differences += kPanelRows;
    }
    for (size_t t = 0; t < kTokens; ++t) {
      for (size_t i = 0; i < 2; ++i) add_to(out[t] + first + 4 * i, scaled[t][i], scales[t][g]);
    }
  }
  if constexpr (kHasMin) subtract_mins<kTokens>(panel.mins + first, cols / 32, inputs, first, out);
}

// ---- blocks of 256 -------------------------------------------------------------------------------------------------

// Adds what eight sub-blocks' minimums come to.
template <size_t kTokens>
ALWAYS_INLINE void add_eight_mins(const int16_t* mins, const int16x8_t (&sums)[kTokens],
                                  int32x4_t (&totals)[kTokens][2]) {
  const auto add = [&]<size_t kPair>() {
    const int16x8x2_t pair = vld2q_s16(mins + 2 * kPanelRows * kPair);
    for (size_t t = 0; t < kTokens; ++t) {
      totals[t][0] = vmlal_laneq_s16(totals[t][0], vget_low_s16(pair.val[0]), sums[t], 2 * kPair);
      totals[t][1] = vmlal_high_laneq_s16(totals[t][1], pair.val[0], sums[t], 2 * kPair);
      totals[t][0] = vmlal_laneq_s16(totals[t][0], vget_low_s16(pair.val[1]), sums[t], 2 * kPair + 1);
      totals[t][1] = vmlal_high_laneq_s16(totals[t][1], pair.val[1], sums[t], 2 * kPair + 1);
    }
  };
  add.template operator()<0>();
  add.template operator()<1>();
  add.template operator()<2>();
  add.template operator()<3>();
}

template <size_t kSub, size_t kTokens>
ALWAYS_INLINE void add_mins(const int16_t* mins, const Q8Row* inputs, size_t block,
                            int32x4_t (&totals)[kTokens][2]) {
  for (size_t s = 0; s < 256 / kSub; s += 8) {
    int16x8_t sums[kTokens];
    for (size_t t = 0; t < kTokens; ++t) {
      sums[t] = vld1q_s16((kSub == 32 ? inputs[t].sums32 : inputs[t].sums16) + 256 / kSub * block + s);
    }
    add_eight_mins(mins + kPanelRows * s, sums, totals);
  }
}

template <size_t kTokens>
ALWAYS_INLINE void add_totals(const int32_t* factors, const Prefixes<kTokens>& prefixes,
                              int32x4_t (&totals)[kTokens][2]) {
  const int32x4_t low = vld1q_s32(factors), high = vld1q_s32(factors + 4);
  for (size_t t = 0; t < kTokens; ++t) {
    totals[t][0] = vmlaq_s32(totals[t][0], prefixes.v[t][0], low);
    totals[t][1] = vmlaq_s32(totals[t][1], prefixes.v[t][1], high);
  }
}

template <size_t kSub, ActivationForm kForm, bool kHasMin, size_t kTokens>
requires(kForm == ActivationForm::q8_256) void multiply_tile(const OpenPanel& panel, size_t first,
                                                             size_t cols, const Q8Row* inputs,
                                                             float (*out)[kPanelRows]) {
  const int8_t* values[kTokens];
  const float* scales[kTokens];
  for (size_t t = 0; t < kTokens; ++t) {
    values[t] = inputs[t].values;
    scales[t] = inputs[t].scales;
    vst1q_f32(out[t] + first, vdupq_n_f32(0.0f));
    vst1q_f32(out[t] + first + 4, vdupq_n_f32(0.0f));
  }
  const uint8_t* codes = panel.codes + 4 * first;
  const int32_t* factors = panel.sub_factors + first;
  for (size_t b = 0; b < cols / 256; ++b) {
    Prefixes<kTokens> prefixes = {};
    int32x4_t totals[kTokens][2] = {};
    for (size_t c = 256 * b; c < 256 * (b + 1); c += 32, codes += 32 * kPanelRows, factors += kPanelRows) {
      add_opened(codes, values, c, prefixes);
      if constexpr (kSub == 16) {
        add_totals(factors, prefixes, totals);
        factors += kPanelRows;
      }
      add_opened(codes + 16 * kPanelRows, values, c + 16, prefixes);
      add_totals(factors, prefixes, totals);
    }
    int32x4_t min_totals[kTokens][2] = {};
    if constexpr (kHasMin) {
      add_mins<kSub>(panel.sub_mins + kPanelRows * (256 / kSub) * b + 2 * first, inputs, b, min_totals);
    }
    for (size_t i = 0; i < 2; ++i) {
      const float32x4_t scale = vld1q_f32(panel.scales + kPanelRows * b + first + 4 * i);
      const float32x4_t min_scale = vld1q_f32(panel.min_scales + kPanelRows * b + first + 4 * i);
      for (size_t t = 0; t < kTokens; ++t) {
        float32x4_t scaled = vmulq_f32(vcvtq_f32_s32(totals[t][i]), scale);
        if constexpr (kHasMin) scaled = vfmsq_f32(scaled, vcvtq_f32_s32(min_totals[t][i]), min_scale);
        add_to(out[t] + first + 4 * i, scaled, scales[t][b]);
      }
    }
  }
}

template <size_t kSub, ActivationForm kForm, bool kHasMin, size_t kTokens>
void multiply_rows(const OpenPanel& panel, size_t cols, const Q8Row* inputs, float (*out)[kPanelRows]) {
  multiply_tile<kSub, kForm, kHasMin, kTokens>(panel, 0, cols, inputs, out);
  multiply_tile<kSub, kForm, kHasMin, kTokens>(panel, 8, cols, inputs, out);
}

}  // namespace
}  // namespace quire
