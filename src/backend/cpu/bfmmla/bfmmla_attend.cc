// Attention to pages of bf16 by `bfmmla`, which multiplies two rows of four numbers with two others.
//
// Compiled for the bf16 instructions of ARMv8.6, so nothing here may be inlined elsewhere.
#if defined(__aarch64__)

#include "backend/cpu/bfmmla/bfmmla_kernels.h"
#include "backend/cpu/neon/attend_dot_isa.h"

namespace quire {
namespace {

ALWAYS_INLINE float32x4_t add_products(float32x4_t sums, uint16x8_t a, uint16x8_t b) {
  return vbfmmlaq_f32(sums, vreinterpretq_bf16_u16(a), vreinterpretq_bf16_u16(b));
}
ALWAYS_INLINE uint16x8_t load8(const void* at) {
  return vld1q_u16(static_cast<const uint16_t*>(at));
}
// The first halves of two vectors, and the second ones.
ALWAYS_INLINE uint16x8_t lower_halves(uint16x8_t a, uint16x8_t b) {
  return vreinterpretq_u16_u64(vzip1q_u64(vreinterpretq_u64_u16(a), vreinterpretq_u64_u16(b)));
}
ALWAYS_INLINE uint16x8_t upper_halves(uint16x8_t a, uint16x8_t b) {
  return vreinterpretq_u16_u64(vzip2q_u64(vreinterpretq_u64_u16(a), vreinterpretq_u64_u16(b)));
}
ALWAYS_INLINE float32x4_t lower_halves(float32x4_t a, float32x4_t b) {
  return vreinterpretq_f32_u64(vzip1q_u64(vreinterpretq_u64_f32(a), vreinterpretq_u64_f32(b)));
}
ALWAYS_INLINE float32x4_t upper_halves(float32x4_t a, float32x4_t b) {
  return vreinterpretq_f32_u64(vzip2q_u64(vreinterpretq_u64_f32(a), vreinterpretq_u64_f32(b)));
}
// Of pairs, those of a and b in turns.
ALWAYS_INLINE uint16x8_t lower_pairs(uint16x8_t a, uint16x8_t b) {
  return vreinterpretq_u16_u32(vzip1q_u32(vreinterpretq_u32_u16(a), vreinterpretq_u32_u16(b)));
}
ALWAYS_INLINE uint16x8_t upper_pairs(uint16x8_t a, uint16x8_t b) {
  return vreinterpretq_u16_u32(vzip2q_u32(vreinterpretq_u32_u16(a), vreinterpretq_u32_u16(b)));
}

struct MatrixBf16 {
  static constexpr bool kPresent = true;
  static constexpr size_t kPagesAhead = 0;
  static constexpr size_t kScoreRows = 8, kValueColumns = 16;

  static constexpr bool takes(size_t dim, size_t page_tokens) {
    return dim % kValueColumns == 0 && dim <= kMostBf16Dim && page_tokens == kPageTokens;
  }
  static void begin(size_t, const std::byte*, size_t) {}
  static void end() {}

  // [4 columns][4 queries][4 of them]: two vectors, each of two queries.
  template <size_t N>
  static constexpr size_t place(size_t lane, size_t d) {
    static_assert(N == 4);
    return d / 4 * 16 + lane * 4 + d % 4;
  }

  template <size_t N>
  static void score(const uint16_t* queries, const PageRows& keys, size_t dim, size_t begin, size_t end,
                    float* out) {
    for (size_t row = begin / kScoreRows * kScoreRows; row < end; row += kScoreRows) {
      const std::byte* at = keys.bytes + row * keys.row_bytes;
      prefetch<FarFetch>(keys, at, kScoreRows * keys.row_bytes);
      score_rows(queries, at, keys.row_bytes, dim, out + row * N);
    }
  }

  template <size_t N>
  static void add_values(const float* shares, const PageRows& rows, size_t dim, float* out, size_t stride) {
    uint16x8_t packed[kPageTokens / 4][2];
    for (size_t r = 0; r < kPageTokens / 4; ++r) pack_shares(shares + 16 * r, packed[r]);
    const size_t share = kPageTokens * rows.row_bytes / (dim / kValueColumns);
    for (size_t d = 0; d < dim; d += kValueColumns) {
      prefetch<FarFetch>(rows, rows.bytes + d / kValueColumns * share,
                         share);  // all at once would have to wait
      add_columns(packed, rows.bytes + 2 * d, rows.row_bytes, out + d, stride);
    }
  }

  static void put_in_order(float*, size_t) {}

 private:
  static ALWAYS_INLINE void score_rows(const uint16_t* queries, const std::byte* keys, size_t row_bytes,
                                       size_t dim, float* out) {
    constexpr size_t kPairs = kScoreRows / 2;
    float32x4_t sums[kPairs][2] = {};  // [2 keys][2 queries]
    for (size_t d = 0; d < dim; d += 8, keys += 16, queries += 32) {
      const uint16x8_t first[2] = {load8(queries), load8(queries + 8)};
      const uint16x8_t second[2] = {load8(queries + 16), load8(queries + 24)};
      for (size_t p = 0; p < kPairs; ++p) {
        const uint16x8_t a = load8(keys + 2 * p * row_bytes), b = load8(keys + (2 * p + 1) * row_bytes);
        const uint16x8_t lower = lower_halves(a, b), upper = upper_halves(a, b);
        for (size_t q = 0; q < 2; ++q) sums[p][q] = add_products(sums[p][q], lower, first[q]);
        for (size_t q = 0; q < 2; ++q) sums[p][q] = add_products(sums[p][q], upper, second[q]);
      }
    }
    for (size_t p = 0; p < kPairs; ++p, out += 8) {
      vst1q_f32(out, lower_halves(sums[p][0], sums[p][1]));
      vst1q_f32(out + 4, upper_halves(sums[p][0], sums[p][1]));
    }
  }

  // The shares of four rows, [4 rows][4 queries], as [4 queries][4 rows].
  static ALWAYS_INLINE void pack_shares(const float* shares, uint16x8_t (&out)[2]) {
    const uint16x8_t a = vuzp2q_u16(load8(shares), load8(shares + 4));
    const uint16x8_t b = vuzp2q_u16(load8(shares + 8), load8(shares + 12));
    const uint16x8_t ab = vzip1q_u16(a, vextq_u16(a, a, 4)), cd = vzip1q_u16(b, vextq_u16(b, b, 4));
    out[0] = lower_pairs(ab, cd);
    out[1] = upper_pairs(ab, cd);
  }

  // Four rows of eight columns, as [8 columns][4 rows].
  static ALWAYS_INLINE void transpose(const std::byte* rows, size_t row_bytes, uint16x8_t (&out)[4]) {
    const uint16x8_t a = load8(rows), b = load8(rows + row_bytes);
    const uint16x8_t c = load8(rows + 2 * row_bytes), d = load8(rows + 3 * row_bytes);
    const uint16x8_t lower_ab = vzip1q_u16(a, b), lower_cd = vzip1q_u16(c, d);
    const uint16x8_t upper_ab = vzip2q_u16(a, b), upper_cd = vzip2q_u16(c, d);
    out[0] = lower_pairs(lower_ab, lower_cd);
    out[1] = upper_pairs(lower_ab, lower_cd);
    out[2] = lower_pairs(upper_ab, upper_cd);
    out[3] = upper_pairs(upper_ab, upper_cd);
  }

  static void add_columns(const uint16x8_t (&shares)[kPageTokens / 4][2], const std::byte* rows,
                          size_t row_bytes, float* out, size_t stride) {
    constexpr size_t kPairs = kValueColumns / 2;
    float32x4_t sums[2][kPairs];  // [2 queries][2 columns]
    for (size_t q = 0; q < 2; ++q) {
      for (size_t c = 0; c < kPairs; c += 2) {
        const float* at = out + 2 * q * stride + 2 * c;
        const float32x4_t a = vld1q_f32(at), b = vld1q_f32(at + stride);
        sums[q][c] = lower_halves(a, b);
        sums[q][c + 1] = upper_halves(a, b);
      }
    }
    for (size_t r = 0; r < kPageTokens / 4; ++r, rows += 4 * row_bytes) {
      for (size_t half = 0; half < 2; ++half) {
        uint16x8_t values[4];
        transpose(rows + 16 * half, row_bytes, values);
        for (size_t q = 0; q < 2; ++q) {
          for (size_t c = 0; c < 4; ++c)
            sums[q][4 * half + c] = add_products(sums[q][4 * half + c], shares[r][q], values[c]);
        }
      }
    }
    for (size_t q = 0; q < 2; ++q) {
      for (size_t c = 0; c < kPairs; c += 2) {
        float* at = out + 2 * q * stride + 2 * c;
        vst1q_f32(at, lower_halves(sums[q][c], sums[q][c + 1]));
        vst1q_f32(at + stride, upper_halves(sums[q][c], sums[q][c + 1]));
      }
    }
  }
};

struct NeonBf16 : NeonDot {
  using Fetch = FarFetch;
  using Bf16 = MatrixBf16;
};

}  // namespace

void attend_bfmmla(const AttendArgs& args) {
  PagesAttention<NeonBf16>(args).run();
}

}  // namespace quire

#endif
