#pragma once

#include <arm_neon.h>

#include "backend/cpu/matmul/stream_fetch.h"
#include "backend/cpu/neon/panel_reader.h"

// The product of a packed panel with one or two tokens by `sdot`: codes go from memory into the product. Only for
// dot_matmul.cc, which is compiled for it.

namespace quire {
namespace {

// ---- blocks whose scales are floats --------------------------------------------------------------------------------------------------

template <size_t kTokens>
struct DirectSums {
  int32x4_t prefix[kTokens][kVectors];
  float32x4_t scaled[kTokens][kVectors];
  float32x4_t sum[kTokens][kVectors];
  float32x4_t min_sum[kTokens][kVectors];
};

template <class Format, size_t g, size_t kTokens>
ALWAYS_INLINE void add_columns(const uint8_t* step, int8x16_t table, const int8x16_t (*values)[2],
                               int32x4_t (&prefix)[kTokens][kVectors]) {
  for (size_t i = 0; i < kVectors; ++i) {
    const int8x16_t codes = Reader<Format>::template codes<g>(step, i, table);
    for (size_t t = 0; t < kTokens; ++t) {
      prefix[t][i] = vdotq_laneq_s32(prefix[t][i], codes, values[t][g / 4], g % 4);
    }
  }
}

// The 32 columns from c on. `halfway` is called after sixteen of them.
template <class Format, class Fetch, size_t kTokens, class Halfway>
ALWAYS_INLINE void add_step(const uint8_t* step, size_t c, int8x16_t table, const Q8Row* inputs,
                            int32x4_t (&prefix)[kTokens][kVectors], const Halfway& halfway) {
  fetch_ahead<Fetch, PackedBlock<Format>::kStepBytes>(step);
  int8x16_t values[kTokens][2];
  for (size_t t = 0; t < kTokens; ++t) {
    values[t][0] = vld1q_s8(inputs[t].values + c);
    values[t][1] = vld1q_s8(inputs[t].values + c + 16);
  }
  add_columns<Format, 0>(step, table, values, prefix);
  add_columns<Format, 1>(step, table, values, prefix);
  add_columns<Format, 2>(step, table, values, prefix);
  add_columns<Format, 3>(step, table, values, prefix);
  halfway();
  add_columns<Format, 4>(step, table, values, prefix);
  add_columns<Format, 5>(step, table, values, prefix);
  add_columns<Format, 6>(step, table, values, prefix);
  add_columns<Format, 7>(step, table, values, prefix);
}

template <size_t kTokens>
ALWAYS_INLINE void add_scaled(const PerRow& scale, const PerRow& next, DirectSums<kTokens>& sums) {
  for (size_t i = 0; i < kVectors; ++i) {
    const float32x4_t difference = vsubq_f32(scale.v[i], next.v[i]);
    for (size_t t = 0; t < kTokens; ++t) {
      const float32x4_t prefix = vreinterpretq_f32_s32(sums.prefix[t][i]);
      sums.scaled[t][i] = vfmaq_f32(sums.scaled[t][i], prefix, difference);
    }
  }
}

template <size_t kTokens>
ALWAYS_INLINE void add_mins(const PerRow& min, size_t index, const Q8Row* inputs, DirectSums<kTokens>& sums) {
  for (size_t t = 0; t < kTokens; ++t) {
    const float sum = inputs[t].scaled_sums[index];
    for (size_t i = 0; i < kVectors; ++i) sums.min_sum[t][i] = vfmaq_n_f32(sums.min_sum[t][i], min.v[i], sum);
  }
}

// A group of activations: `steps` steps of 32 columns from `first` on, the weights' from `block` on. Scales are used
// without the share of codes, which is a power of two and is given to the activations' scale instead.
template <class Format, ActivationForm kForm, class Fetch, size_t kTokens>
ALWAYS_INLINE void add_group(const uint8_t* block, size_t first, size_t steps, int8x16_t table,
                             const Q8Row* inputs, DirectSums<kTokens>& sums) {
  using Packed = PackedBlock<Format>;
  using Read = Reader<Format>;
  constexpr size_t kSub = Packed::kSub;
  static_assert(kSub == 32 || !Packed::Uniform::kHasMin);
  PerRow scale = Read::whole_scales(block);
  for (size_t t = 0; t < kTokens; ++t) {
    for (size_t i = 0; i < kVectors; ++i) {
      sums.prefix[t][i] = vdupq_n_s32(kMagicBits);
      sums.scaled[t][i] = vmulq_n_f32(scale.v[i], -kMagic);
    }
  }
  if constexpr (kSub == 32) {
    for (size_t s = 0; s < steps; ++s, block += Packed::kBytes) {
      const size_t c = first + 32 * s;
      add_step<Format, Fetch>(block + Packed::kStart, c, table, inputs, sums.prefix, [] {});
      const PerRow next = s + 1 < steps ? Read::whole_scales(block + Packed::kBytes) : PerRow{};
      add_scaled(scale, next, sums);
      if constexpr (Packed::Uniform::kHasMin) {
        add_mins(Read::moved_mins(block, scale), c / 32, inputs, sums);
      }
      scale = next;
    }
  } else {
    const auto end_sub = [&](size_t after) __attribute__((always_inline)) {
      const PerRow next = after < 32 * steps ? Read::whole_scales_at(block, after) : PerRow{};
      add_scaled(scale, next, sums);
      scale = next;
    };
    for (size_t c = 0; c < 32 * steps; c += 32) {
      add_step<Format, Fetch>(
          step_at<Packed>(block, c), first + c, table, inputs,
          sums.prefix, [&]() __attribute__((always_inline)) { end_sub(c + kSub); });
      end_sub(c + 32);
    }
  }
  for (size_t t = 0; t < kTokens; ++t) {
    const float factor = inputs[t].scales[first / group_values(kForm)] * Packed::Uniform::kScaleShare;
    for (size_t i = 0; i < kVectors; ++i) {
      sums.sum[t][i] = vfmaq_n_f32(sums.sum[t][i], sums.scaled[t][i], factor);
    }
  }
}

template <class Format, ActivationForm kForm, class Fetch, size_t kTokens>
void multiply_direct(const uint8_t* panel, size_t cols, const Q8Row* inputs, float (*out)[kPanelRows]) {
  using Packed = PackedBlock<Format>;
  constexpr size_t kGroup = group_values(kForm);
  const int8x16_t table = Reader<Format>::table();
  DirectSums<kTokens> sums = {};
  size_t c = 0;
  for (; c + kGroup <= cols; c += kGroup) {
    add_group<Format, kForm, Fetch>(block_at<Packed>(panel, c), c, kGroup / 32, table, inputs, sums);
  }
  if (c < cols) {
    add_group<Format, kForm, Fetch>(block_at<Packed>(panel, c), c, (cols - c) / 32, table, inputs, sums);
  }
  for (size_t t = 0; t < kTokens; ++t) {
    for (size_t i = 0; i < kVectors; ++i) {
      float32x4_t result = sums.sum[t][i];
      if constexpr (Packed::Uniform::kHasMin) result = vsubq_f32(result, sums.min_sum[t][i]);
      vst1q_f32(out[t] + 4 * i, result);
    }
  }
}

// ---- blocks of 256, whose sub-scales are whole numbers -------------------------------------------------------------

template <size_t kTokens>
struct WholeSums {
  int32x4_t prefix[kTokens][kVectors];
  int32x4_t total[kTokens][kVectors];
  float32x4_t sum[kTokens][kVectors];
};

// At the end of a sub-block: its scales, and the next one's.
template <size_t kTokens>
ALWAYS_INLINE void add_total(int8x16_t scale, int8x16_t next, WholeSums<kTokens>& sums) {
  const int16x8_t low = vsubl_s8(vget_low_s8(scale), vget_low_s8(next)), high = vsubl_high_s8(scale, next);
  const int32x4_t differences[kVectors] = {vmovl_s16(vget_low_s16(low)), vmovl_high_s16(low),
                                           vmovl_s16(vget_low_s16(high)), vmovl_high_s16(high)};
  for (size_t t = 0; t < kTokens; ++t) {
    for (size_t i = 0; i < kVectors; ++i) {
      sums.total[t][i] = vmlaq_s32(sums.total[t][i], sums.prefix[t][i], differences[i]);
    }
  }
}

// Sub-blocks 2 kPair and 2 kPair + 1 of eight: `sums` are those of a token's activations.
template <size_t kPair>
ALWAYS_INLINE void add_min_pair(const int8x16x2_t& mins, int16x8_t sums, int32x4_t (&total)[kVectors]) {
  const auto add = [&]<size_t kLane>(int8x16_t min) {
    const int16x8_t low = vmovl_s8(vget_low_s8(min)), high = vmovl_high_s8(min);
    total[0] = vmlal_laneq_s16(total[0], vget_low_s16(low), sums, kLane);
    total[1] = vmlal_high_laneq_s16(total[1], low, sums, kLane);
    total[2] = vmlal_laneq_s16(total[2], vget_low_s16(high), sums, kLane);
    total[3] = vmlal_high_laneq_s16(total[3], high, sums, kLane);
  };
  add.template operator()<2 * kPair>(mins.val[0]);
  add.template operator()<2 * kPair + 1>(mins.val[1]);
}

// What the minimums of a block come to.
template <class Format>
ALWAYS_INLINE void add_block_mins(const uint8_t* block, const Q8Row& input, size_t first,
                                  int32x4_t (&total)[kVectors]) {
  using Packed = PackedBlock<Format>;
  const int16_t* sums = Packed::kSub == 32 ? input.sums32 + first / 32 : input.sums16 + first / 16;
  for (size_t pair = 0; pair < Packed::kSubs / 2; pair += 4) {
    const int16x8_t eight = vld1q_s16(sums + 2 * pair);
    add_min_pair<0>(Reader<Format>::sub_mins(block, pair), eight, total);
    add_min_pair<1>(Reader<Format>::sub_mins(block, pair + 1), eight, total);
    add_min_pair<2>(Reader<Format>::sub_mins(block, pair + 2), eight, total);
    add_min_pair<3>(Reader<Format>::sub_mins(block, pair + 3), eight, total);
  }
}

template <class Format, class Fetch, size_t kTokens>
ALWAYS_INLINE void add_block(const uint8_t* block, size_t first, int8x16_t table, const Q8Row* inputs,
                             WholeSums<kTokens>& sums) {
  using Packed = PackedBlock<Format>;
  using Read = Reader<Format>;
  constexpr size_t kSubsInStep = 32 / Packed::kSub;
  for (size_t t = 0; t < kTokens; ++t) {
    for (size_t i = 0; i < kVectors; ++i) sums.prefix[t][i] = sums.total[t][i] = vdupq_n_s32(0);
  }
  int8x16_t scale = Read::sub_scales(block, 0);
  const auto end_sub = [&](size_t sub) {
    const int8x16_t next = sub + 1 < Packed::kSubs ? Read::sub_scales(block, sub + 1) : vdupq_n_s8(0);
    add_total(scale, next, sums);
    scale = next;
  };
  for (size_t s = 0; s < Packed::kValues / 32; ++s) {
    add_step<Format, Fetch>(block + Packed::kStart + s * Packed::kStepBytes, first + 32 * s, table, inputs,
                            sums.prefix, [&] {
                              if constexpr (kSubsInStep == 2) end_sub(2 * s);
                            });
    end_sub(kSubsInStep * (s + 1) - 1);
  }
  const PerRow scales = Read::block_scales(block);
  for (size_t t = 0; t < kTokens; ++t) {
    int32x4_t min_total[kVectors] = {};
    PerRow min_scales = {};
    if constexpr (Packed::Uniform::kHasMin) {
      add_block_mins<Format>(block, inputs[t], first, min_total);
      min_scales = PerRow::load_f16(block + Packed::kSecond);
    }
    const float factor = inputs[t].scales[first / Packed::kValues];
    for (size_t i = 0; i < kVectors; ++i) {
      float32x4_t scaled = vmulq_f32(vcvtq_f32_s32(sums.total[t][i]), scales.v[i]);
      if constexpr (Packed::Uniform::kHasMin) {
        scaled = vfmsq_f32(scaled, vcvtq_f32_s32(min_total[i]), min_scales.v[i]);
      }
      sums.sum[t][i] = vfmaq_n_f32(sums.sum[t][i], scaled, factor);
    }
  }
}

template <In256 Format, ActivationForm kForm, class Fetch, size_t kTokens>
void multiply_direct(const uint8_t* panel, size_t cols, const Q8Row* inputs, float (*out)[kPanelRows]) {
  using Packed = PackedBlock<Format>;
  static_assert(Packed::kValues == group_values(kForm));
  const int8x16_t table = Reader<Format>::table();
  WholeSums<kTokens> sums = {};
  for (size_t c = 0; c < cols; c += Packed::kValues, panel += Packed::kBytes) {
    add_block<Format, Fetch>(panel, c, table, inputs, sums);
  }
  for (size_t t = 0; t < kTokens; ++t) {
    for (size_t i = 0; i < kVectors; ++i) vst1q_f32(out[t] + 4 * i, sums.sum[t][i]);
  }
}

}  // namespace
}  // namespace quire
