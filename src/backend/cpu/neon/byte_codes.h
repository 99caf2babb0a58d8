// Attention to codes with NEON. Included by files that are compiled for different instruction sets, so nothing here may have
// a name that the linker sees.
#pragma once

#include <type_traits>

#include <arm_neon.h>

#include "backend/cpu/attention/attend_codes.h"

namespace quire {
namespace {

// Codes of 8 bits with numbers of 16, of which x = 128 * high + low. `Products` multiplies bytes:
//
//   add(sum, a, b)          adds the sixteen products, four to each lane in any order
//   add_four<i>(sum, a, b)  to each lane the products of its own four bytes with bytes 4 i to 4 i + 3 of b
//   add_small<i>(sum, a, b) the same where two products fit 16 bits with room to add two
template <class Products>
struct ByteCodes {
  static constexpr size_t kTileQueries = 0;

  static constexpr size_t kFourBlocks = 128;  // bytes of their weights

  static void pack_query(const int16_t* codes, size_t lane, std::byte* out) {
    int8x8_t high[2], low[2];
    for (size_t i = 0; i < 2; ++i) {
      const int16x8_t x = vld1q_s16(codes + 8 * i), upper = vrshrq_n_s16(x, 7);
      high[i] = vmovn_s16(upper);
      low[i] = vmovn_s16(vsubq_s16(x, vshlq_n_s16(upper, 7)));
    }
    auto* at = reinterpret_cast<int8_t*>(out) + lane * 32;
    vst1q_s8(at, vcombine_s8(high[0], high[1]));
    vst1q_s8(at + 16, vcombine_s8(low[0], low[1]));
  }

  static ALWAYS_INLINE void dot_rows(const std::byte* packed, const std::byte* rows, size_t row_bytes,
                                     size_t chunks, int32_t* sums) {
    for (size_t r = 0; r < 4; r += 2, rows += 2 * row_bytes, sums += 8) {
      const auto* query = reinterpret_cast<const int8_t*>(packed);
      int32x4_t high[2][4] = {}, low[2][4] = {};
      for (size_t c = 0; c < chunks; ++c, query += kPackedBytes) {
        const int8x16_t first = codes(rows, c), second = codes(rows + row_bytes, c);
        for (size_t lane = 0; lane < 4; ++lane) {
          const int8x16_t upper = vld1q_s8(query + 32 * lane), lower = vld1q_s8(query + 32 * lane + 16);
          high[0][lane] = Products::add(high[0][lane], first, upper);
          low[0][lane] = Products::add(low[0][lane], first, lower);
          high[1][lane] = Products::add(high[1][lane], second, upper);
          low[1][lane] = Products::add(low[1][lane], second, lower);
        }
      }
      for (size_t i = 0; i < 2; ++i) vst1q_s32(sums + i * 4, joined(high[i], low[i]));
    }
  }

  // Of each query the sum of its four sums, high and low.
  static ALWAYS_INLINE int32x4_t joined(const int32x4_t (&high)[4], const int32x4_t (&low)[4]) {
    const auto pairs = [](const int32x4_t(&x)[4]) {
      return vpaddq_s32(vpaddq_s32(x[0], x[1]), vpaddq_s32(x[2], x[3]));
    };
    return vaddq_s32(vshlq_n_s32(pairs(high), 7), pairs(low));
  }

  // Of four blocks: [queries][high of sixteen rows, low of sixteen rows].
  static ALWAYS_INLINE void pack_weights(const Ints<4> (&rows)[4], size_t block, std::byte* out) {
    int32x4_t high[4], low[4];
    for (size_t r = 0; r < 4; ++r) {
      high[r] = vrshrq_n_s32(int32x4_t(rows[r]), 7);
      low[r] = vsubq_s32(int32x4_t(rows[r]), vshlq_n_s32(high[r], 7));
    }
    auto* at = reinterpret_cast<int32_t*>(out + block / 4 * kFourBlocks) + block % 4;
    store_by_query(bytes_by_query(high), at);
    store_by_query(bytes_by_query(low), at + 4);
  }
  static ALWAYS_INLINE void store_by_query(int32x4_t bytes, int32_t* at) {
    vst1q_lane_s32(at, bytes, 0);
    vst1q_lane_s32(at + 8, bytes, 1);
    vst1q_lane_s32(at + 16, bytes, 2);
    vst1q_lane_s32(at + 24, bytes, 3);
  }

  // The lowest bytes of [rows][queries] as [queries][rows].
  static ALWAYS_INLINE int32x4_t bytes_by_query(const int32x4_t (&rows)[4]) {
    const auto halves = [](int32x4_t a, int32x4_t b) {
      return vuzp1q_s16(vreinterpretq_s16_s32(a), vreinterpretq_s16_s32(b));
    };
    const int8x16_t bytes = vuzp1q_s8(vreinterpretq_s8_s16(halves(rows[0], rows[1])),
                                      vreinterpretq_s8_s16(halves(rows[2], rows[3])));
    static constexpr uint8_t kTurned[16] = {0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15};
    return vreinterpretq_s32_s8(vqtbl1q_s8(bytes, vld1q_u8(kTurned)));
  }

  static ALWAYS_INLINE void sum_rows(const std::byte* weights, const std::byte* rows, size_t row_bytes,
                                     size_t blocks, size_t chunk, int32_t* sums) {
    for (size_t half = 0; half < 2; ++half) {
      Sums all = {};
      const std::byte *weight = weights, *row = rows;
      for (size_t b = 0; b < blocks; b += 4, weight += kFourBlocks) {
        int8x16_t upper[4], lower[4];
        for (size_t lane = 0; lane < 4; ++lane) {
          upper[lane] = vld1q_s8(reinterpret_cast<const int8_t*>(weight) + 32 * lane);
          lower[lane] = vld1q_s8(reinterpret_cast<const int8_t*>(weight) + 32 * lane + 16);
        }
        const auto add = [&]<int i>(std::integral_constant<int, i>) {
          all.template add<i>(eight_by_four(row, row_bytes, chunk, half), upper, lower);
          row += 4 * row_bytes;
        };
        add(std::integral_constant<int, 0>());
        if (b + 1 < blocks) add(std::integral_constant<int, 1>());
        if (b + 2 < blocks) add(std::integral_constant<int, 2>());
        if (b + 3 < blocks) add(std::integral_constant<int, 3>());
      }
      for (size_t lane = 0; lane < 4; ++lane) {
        for (size_t i = 0; i < 2; ++i)
          vst1q_s32(sums + lane * kChunk + 8 * half + 4 * i,
                    vaddq_s32(vshlq_n_s32(all.high[lane][i], 7), all.low[lane][i]));
      }
    }
  }

  struct Sums {
    int32x4_t high[4][2], low[4][2];  // [queries], of eight codes

    // Block i of four.
    template <int i>
    ALWAYS_INLINE void add(int8x16x2_t codes, const int8x16_t (&upper)[4], const int8x16_t (&lower)[4]) {
      for (size_t lane = 0; lane < 4; ++lane) {
        for (size_t k = 0; k < 2; ++k) {
          high[lane][k] = Products::template add_four<i>(high[lane][k], codes.val[k], upper[lane]);
          low[lane][k] = Products::template add_four<i>(low[lane][k], codes.val[k], lower[lane]);
        }
      }
    }
  };

  // Half of a chunk of four rows as [codes][rows].
  static ALWAYS_INLINE int8x16x2_t eight_by_four(const std::byte* row, size_t row_bytes, size_t chunk,
                                                 size_t half) {
    const auto at = [&](size_t r) { return eight(row + r * row_bytes, chunk, half); };
    const int16x8_t ab = vreinterpretq_s16_s8(pairs(at(0), at(1)));
    const int16x8_t cd = vreinterpretq_s16_s8(pairs(at(2), at(3)));
    return {vreinterpretq_s8_s16(vzip1q_s16(ab, cd)), vreinterpretq_s8_s16(vzip2q_s16(ab, cd))};
  }

  static ALWAYS_INLINE int8x16_t pairs(int8x8_t a, int8x8_t b) {
    const int8x16_t zero = vdupq_n_s8(0);
    return vzip1q_s8(vcombine_s8(a, vget_low_s8(zero)), vcombine_s8(b, vget_low_s8(zero)));
  }

  static ALWAYS_INLINE int8x16_t codes(const std::byte* row, size_t chunk) {
    return vld1q_s8(reinterpret_cast<const int8_t*>(row) + chunk * kChunk);
  }

  // Half of a chunk.
  static ALWAYS_INLINE int8x8_t eight(const std::byte* row, size_t chunk, size_t half) {
    return vld1_s8(reinterpret_cast<const int8_t*>(row) + chunk * kChunk + half * 8);
  }
};

// For processors that cannot add four products at once.
struct WideningProducts {
  static ALWAYS_INLINE int32x4_t add(int32x4_t sum, int8x16_t a, int8x16_t b) {
    const int16x8_t low = vmull_s8(vget_low_s8(a), vget_low_s8(b));  // two products of bytes fit
    return vpadalq_s16(sum, vmlal_high_s8(low, a, b));
  }
  template <int i>
  static ALWAYS_INLINE int32x4_t add_four(int32x4_t sum, int8x16_t a, int8x16_t from) {
    const int8x16_t b = vreinterpretq_s8_s32(vdupq_laneq_s32(vreinterpretq_s32_s8(from), i));
    const int32x4_t low = vpaddlq_s16(vmull_s8(vget_low_s8(a), vget_low_s8(b)));
    return vaddq_s32(sum, vpaddq_s32(low, vpaddlq_s16(vmull_high_s8(a, b))));
  }
  template <int i>
  static ALWAYS_INLINE int32x4_t add_small(int32x4_t sum, int8x16_t a, int8x16_t from) {
    const int8x16_t b = vreinterpretq_s8_s32(vdupq_laneq_s32(vreinterpretq_s32_s8(from), i));
    return vpadalq_s16(sum, vpaddq_s16(vmull_s8(vget_low_s8(a), vget_low_s8(b)), vmull_high_s8(a, b)));
  }
};

}  // namespace
}  // namespace quire
