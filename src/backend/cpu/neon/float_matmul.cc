// Products with f32, f16 and bf16 weights by NEON, which every arm64 has.
#if defined(__aarch64__)

#include "backend/cpu/matmul/float_matmul.h"

#include <arm_neon.h>

#include "backend/cpu/neon/neon_kernels.h"

namespace quire {
namespace {

template <class StreamFetch>
struct Neon {
  using Fetch = StreamFetch;
  static constexpr size_t kVectorCols = 4, kPieceCols = 8;
  static constexpr size_t kTileRows = 4,
                          kTileTokens = 4;  // 16 sums; the other registers are for what is loaded ahead
  static constexpr size_t kDirectRows[kDirectTokens] = {1, 2, 2, 1};

  using Vector = float32x4_t;
  static ALWAYS_INLINE Vector load_vector(const float* values) { return vld1q_f32(values); }
  static ALWAYS_INLINE void store_vector(Vector vector, float* out) { vst1q_f32(out, vector); }
  static ALWAYS_INLINE Vector fma(Vector a, Vector b, Vector sum) { return vfmaq_f32(sum, a, b); }

  struct Piece {
    float32x4_t v[2];
  };

  static ALWAYS_INLINE Piece load(const float* values) {
    return {{vld1q_f32(values), vld1q_f32(values + 4)}};
  }
  static ALWAYS_INLINE void store(const Piece& piece, float* out) {
    vst1q_f32(out, piece.v[0]);
    vst1q_f32(out + 4, piece.v[1]);
  }

  static ALWAYS_INLINE uint16x8_t load_halves(const std::byte* bytes) {
    return vreinterpretq_u16_u8(vld1q_u8(reinterpret_cast<const uint8_t*>(bytes)));
  }
  static ALWAYS_INLINE Piece widen(F32, const std::byte* bytes) {
    const uint8_t* values = reinterpret_cast<const uint8_t*>(bytes);
    return {{vreinterpretq_f32_u8(vld1q_u8(values)), vreinterpretq_f32_u8(vld1q_u8(values + 16))}};
  }
  static ALWAYS_INLINE Piece widen(F16, const std::byte* bytes) {
    const float16x8_t halves = vreinterpretq_f16_u16(load_halves(bytes));
    return {{vcvt_f32_f16(vget_low_f16(halves)), vcvt_high_f32_f16(halves)}};
  }
  static ALWAYS_INLINE Piece widen(Bf16, const std::byte* bytes) {
    const uint16x8_t halves = load_halves(bytes), zero = vdupq_n_u16(0);
    return {
        {vreinterpretq_f32_u16(vzip1q_u16(zero, halves)), vreinterpretq_f32_u16(vzip2q_u16(zero, halves))}};
  }

  static ALWAYS_INLINE Piece add_product(Piece sum, const Piece& a, const Piece& b) {
    return {{vfmaq_f32(sum.v[0], a.v[0], b.v[0]), vfmaq_f32(sum.v[1], a.v[1], b.v[1])}};
  }

  static ALWAYS_INLINE float total(const Piece (&lanes)[2]) {
    const float32x4_t four =
        vaddq_f32(vaddq_f32(lanes[0].v[0], lanes[1].v[0]), vaddq_f32(lanes[0].v[1], lanes[1].v[1]));
    return vaddv_f32(vadd_f32(vget_low_f32(four), vget_high_f32(four)));
  }
};

}  // namespace

void use_neon(CpuKernels& kernels) {
  kernels.name = "neon";
  use_float_matmul<Neon<NearFetch>>(kernels);
}

void use_neon_far_floats(CpuKernels& kernels) {
  use_float_matmul<Neon<FarFetch>>(kernels);
}

}  // namespace quire

#endif
