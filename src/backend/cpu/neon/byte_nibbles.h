// Attention to q4 with NEON. Included by files that are compiled for different instruction sets, so nothing here may have a
// name that the linker sees.
#pragma once

#include <type_traits>

#include <arm_neon.h>

#include "backend/cpu/attention/attend_nibbles.h"

namespace quire {
namespace {

// Codes of 4 bits with bytes; `Products` as in byte_codes.h. Sums begin at kZeroBits, which as a float is 1.5 * 2^23: so
// they need no conversion, of which there is half a one in a cycle, only a subtraction.
template <class Products>
struct ByteNibbles {
  static constexpr int32_t kZeroBits = 0x4b400000;

  static ALWAYS_INLINE float32x4_t as_floats(int32x4_t sums) {
    return vsubq_f32(vreinterpretq_f32_s32(sums), vdupq_n_f32(0x1.8p23f));
  }

  // [kPairCodes / 4][queries][4]: the lanes of a sum are queries, so nothing is left to be added across.
  static void pack_queries(const int8_t* codes, std::byte* out) {
    for (size_t d = 0; d < kPairCodes; d += 4) {
      for (size_t lane = 0; lane < 4; ++lane, out += 4) std::memcpy(out, codes + lane * kPairCodes + d, 4);
    }
  }

  // scale, least, scale, least; of one group alone the latter two are 0.
  template <bool whole>
  static ALWAYS_INLINE float32x4_t scales(const std::byte* at) {
    uint64_t halves = 0;
    std::memcpy(&halves, at, whole ? 8 : 4);
    return vcvt_f32_f16(vreinterpret_f16_u64(vcreate_u64(halves)));
  }

  template <class Isa>
  static ALWAYS_INLINE void score(const NibbleQueries& queries, const NibbleRows& rows, float* scores,
                                  size_t stride) {
    float32x4_t even[4], odd[4];
    for (size_t r = 0; r < 4; ++r) even[r] = odd[r] = vdupq_n_f32(0.0f);
    const size_t whole_pairs = rows.dim / kPairCodes;
    for (size_t pair = 0; pair < whole_pairs; ++pair) score_pair<true>(queries, rows, pair, even, odd);
    if (whole_pairs < rows.pairs()) score_pair<false>(queries, rows, whole_pairs, even, odd);
    const float32x4_t steps = vld1q_f32(queries.steps);
    for (size_t r = 0; r < 4; ++r)
      vst1q_f32(scores + r * stride, vmulq_f32(vaddq_f32(even[r], odd[r]), steps));
  }

  template <bool whole>
  static ALWAYS_INLINE void score_pair(const NibbleQueries& queries, const NibbleRows& rows, size_t pair,
                                       float32x4_t (&even)[4], float32x4_t (&odd)[4]) {
    const auto* query = reinterpret_cast<const int8_t*>(queries.packed) + pair * 4 * kPairCodes;
    int32x4_t first[4], second[4];
    score_group(query, rows.codes(0, pair), rows.row_bytes, first);
    if constexpr (whole) score_group(query + 4 * kKvGroup, rows.codes(0, pair) + 16, rows.row_bytes, second);
    const float32x4_t sum = vld1q_f32(queries.sums + pair * 8),
                      other = vld1q_f32(queries.sums + pair * 8 + 4);
    for (size_t r = 0; r < 4; ++r) {
      const float32x4_t scale = scales<whole>(rows.scales(r, pair));
      even[r] = vfmaq_laneq_f32(even[r], as_floats(first[r]), scale, 0);
      even[r] = vfmaq_laneq_f32(even[r], sum, scale, 1);
      if constexpr (!whole) continue;
      odd[r] = vfmaq_laneq_f32(odd[r], as_floats(second[r]), scale, 2);
      odd[r] = vfmaq_laneq_f32(odd[r], other, scale, 3);
    }
  }

  // Of four rows with four queries, by row.
  static ALWAYS_INLINE void score_group(const int8_t* query, const std::byte* codes, size_t row_bytes,
                                        int32x4_t (&sums)[4]) {
    int8x16_t low[4], high[4];
    for (size_t r = 0; r < 4; ++r) {
      const uint8x16_t both = vld1q_u8(reinterpret_cast<const uint8_t*>(codes + r * row_bytes));
      low[r] = vreinterpretq_s8_u8(vandq_u8(both, vdupq_n_u8(15)));
      high[r] = vreinterpretq_s8_u8(vshrq_n_u8(both, 4));
      sums[r] = vdupq_n_s32(kZeroBits);
    }
    const auto add = [&]<int i>(std::integral_constant<int, i>) {
      const int8x16_t a = vld1q_s8(query + 16 * i), b = vld1q_s8(query + 64 + 16 * i);
      for (size_t r = 0; r < 4; ++r) sums[r] = Products::template add_small<i>(sums[r], a, low[r]);
      for (size_t r = 0; r < 4; ++r) sums[r] = Products::template add_small<i>(sums[r], b, high[r]);
    };
    add(std::integral_constant<int, 0>());
    add(std::integral_constant<int, 1>());
    add(std::integral_constant<int, 2>());
    add(std::integral_constant<int, 3>());
  }

  // Of the rows in a group.
  struct Seen {
    float32x4_t most, sum, base;
  };

  template <class Isa>
  static ALWAYS_INLINE void weigh(const NibbleShares& from, const NibbleRows& rows, size_t pair,
                                  NibbleWeights& out) {
    using Fetch = typename Isa::Fetch;
    const float32x4_t none = vdupq_n_f32(0.0f);
    Seen first{none, none, none}, second = first;
    const bool whole = rows.is_whole(pair), all_seen = from.begin == nullptr;
    if (whole && all_seen) weigh_rows<Fetch, true, true>(from, rows, pair, out.floats, first, second);
    if (whole && !all_seen) weigh_rows<Fetch, true, false>(from, rows, pair, out.floats, first, second);
    if (!whole && all_seen) weigh_rows<Fetch, false, true>(from, rows, pair, out.floats, first, second);
    if (!whole && !all_seen) weigh_rows<Fetch, false, false>(from, rows, pair, out.floats, first, second);
    pack(first, from.blocks, 0, out);
    if (whole) pack(second, from.blocks, 1, out);
  }

  template <class Fetch, bool whole, bool all_seen>
  static ALWAYS_INLINE void weigh_rows(const NibbleShares& shares, const NibbleRows& rows, size_t pair,
                                       float* out, Seen& first, Seen& second) {
    const NibbleShares from = shares;  // by value: what is stored might be any of it
    const size_t row_bytes = rows.row_bytes, ahead_bytes = from.ahead != 0 && pair == 0 ? row_bytes : 0;
    const std::byte *row = rows.bytes, *scale_at = rows.scales(0, pair);
    Seen a = first, b = second;
    for (int32_t r = 0; r < int32_t(4 * from.blocks);
         ++r, row += row_bytes, scale_at += row_bytes, out += 8) {
      for (size_t i = 0; i < ahead_bytes; i += 64) fetch_line<Fetch>(row + from.ahead + i);
      const float32x4_t share = vld1q_f32(from.shares + size_t(r) * from.stride);
      float32x4_t scale = scales<whole>(scale_at);
      float32x4_t weight = vmulq_laneq_f32(share, scale, 0), other = vmulq_laneq_f32(share, scale, 2);
      if constexpr (all_seen) {
        a.base = vfmaq_laneq_f32(a.base, share, scale, 1);
        b.base = vfmaq_laneq_f32(b.base, share, scale, 3);
      } else {
        const int32x4_t at = vdupq_n_s32(r);
        const uint32x4_t seen =
            vandq_u32(vcgeq_s32(at, vld1q_s32(from.begin)), vcltq_s32(at, vld1q_s32(from.end)));
        const auto shown = [&](float32x4_t x) {
          return vreinterpretq_f32_u32(vandq_u32(vreinterpretq_u32_f32(x), seen));
        };
        weight = shown(weight);
        other = shown(other);
        a.base = vfmaq_f32(a.base, share, shown(vdupq_laneq_f32(scale, 1)));
        b.base = vfmaq_f32(b.base, share, shown(vdupq_laneq_f32(scale, 3)));
      }
      a.most = vmaxnmq_f32(weight, a.most);
      b.most = vmaxnmq_f32(other, b.most);
      a.sum = vaddq_f32(a.sum, weight);
      b.sum = vaddq_f32(b.sum, other);
      vst1q_f32(out, weight);
      vst1q_f32(out + 4, other);
    }
    first = a;
    second = b;
  }

  // [blocks][groups][queries][rows]
  static ALWAYS_INLINE void pack(const Seen& seen, size_t blocks, size_t g, NibbleWeights& out) {
    const Floats<4> most = Floats<4>(seen.most);
    const Ints<4> some = most > kLeastScaled;
    const float32x4_t steps = float32x4_t(some ? kNibbleSteps / most : Floats<4>{});
    Floats<4> step = some ? most / kNibbleSteps : Floats<4>{};
    step = most < kInfinity ? step : all<4>(__builtin_nanf(""));
    int32x4_t total = vdupq_n_s32(0);
    static constexpr uint8_t kTurned[16] = {0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15};
    const uint8x16_t turned = vld1q_u8(kTurned);
    const int8x16_t ones = vdupq_n_s8(1);
    auto* packed = reinterpret_cast<int8_t*>(out.packed) + 16 * g;
    for (size_t b = 0; b < blocks; ++b) {
      const auto halves = [&](size_t r) {  // the lower halves of two rows' rounded weights
        const float* at = out.floats + 32 * b + 8 * r + 4 * g;
        const auto rounded = [&](const float* x) {
          return vreinterpretq_s16_f32(vaddq_f32(vmulq_f32(vld1q_f32(x), steps), vdupq_n_f32(0x1.8p23f)));
        };
        return vreinterpretq_s8_s16(vuzp1q_s16(rounded(at), rounded(at + 8)));
      };
      const int8x16_t bytes = vqtbl1q_s8(vuzp1q_s8(halves(0), halves(2)), turned);
      total = Products::template add_small<0>(total, bytes, ones);
      vst1q_s8(packed + 32 * b, bytes);
    }
    const float32x4_t drift = vfmsq_f32(seen.sum, vcvtq_f32_s32(total), float32x4_t(step));
    vst1q_f32(out.step[g], float32x4_t(step));
    vst1q_f32(out.base[g], vfmaq_f32(seen.base, vdupq_n_f32(kMiddleCode), drift));
  }

  template <class Isa>
  static ALWAYS_INLINE void add(const NibbleWeights& weights, const NibbleRows& rows, size_t blocks,
                                size_t pair, size_t live, float* values, size_t width) {
    for (size_t part = 0; part < (rows.is_whole(pair) ? 4 : 2); ++part) {
      const size_t g = part / 2, half = part % 2;
      const int32x4_t zero = vdupq_n_s32(kZeroBits);
      // [queries], of eight lower codes and eight upper ones
      int32x4_t sums[4][4] = {{zero, zero, zero, zero},
                              {zero, zero, zero, zero},
                              {zero, zero, zero, zero},
                              {zero, zero, zero, zero}};
      sum_rows(weights.packed + 16 * g, rows.codes(0, pair) + 8 * part, rows.row_bytes, blocks, sums);
      for (size_t q = 0; q < live; ++q) {
        const float32x4_t base = vdupq_n_f32(weights.base[g][q]), step = vdupq_n_f32(weights.step[g][q]);
        float* out = values + q * width + pair * kPairCodes + g * kKvGroup + 8 * half;
        for (size_t i = 0; i < 4; ++i) {
          float* at = out + (i < 2 ? 4 * i : 8 + 4 * i);
          vst1q_f32(at, vfmaq_f32(vaddq_f32(vld1q_f32(at), base), as_floats(sums[q][i]), step));
        }
      }
    }
  }

  static ALWAYS_INLINE void sum_rows(const std::byte* weights, const std::byte* codes, size_t row_bytes,
                                     size_t blocks, int32x4_t (&sums)[4][4]) {
    for (size_t b = 0; b < blocks; ++b, codes += 4 * row_bytes, weights += 32) {
      const int8x16_t weight = vld1q_s8(reinterpret_cast<const int8_t*>(weights));
      const auto eight = [&](size_t r) {
        return vcombine_u8(vld1_u8(reinterpret_cast<const uint8_t*>(codes + r * row_bytes)), vdup_n_u8(0));
      };
      const uint16x8_t ab = vreinterpretq_u16_u8(vzip1q_u8(eight(0), eight(1)));
      const uint16x8_t cd = vreinterpretq_u16_u8(vzip1q_u8(eight(2), eight(3)));
      const uint8x16_t both[2] = {vreinterpretq_u8_u16(vzip1q_u16(ab, cd)),
                                  vreinterpretq_u8_u16(vzip2q_u16(ab, cd))};
      for (size_t i = 0; i < 4; ++i) {
        const int8x16_t four =
            vreinterpretq_s8_u8(i < 2 ? vandq_u8(both[i], vdupq_n_u8(15)) : vshrq_n_u8(both[i - 2], 4));
        sums[0][i] = Products::template add_small<0>(sums[0][i], four, weight);
        sums[1][i] = Products::template add_small<1>(sums[1][i], four, weight);
        sums[2][i] = Products::template add_small<2>(sums[2][i], four, weight);
        sums[3][i] = Products::template add_small<3>(sums[3][i], four, weight);
      }
    }
  }
};

}  // namespace
}  // namespace quire
