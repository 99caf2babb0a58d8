// Attention with NEON as every arm64 has it. Included by files that are compiled for different instruction sets, so nothing
// here may have a name that the linker sees.
#pragma once

#include <arm_neon.h>

#include "backend/cpu/attention/attend_pages.h"
#include "backend/cpu/neon/byte_codes.h"
#include "backend/cpu/neon/byte_nibbles.h"

namespace quire {
namespace {

struct Neon {
  using Fetch = NearFetch;
  static constexpr size_t kLanes = 4, kScoreRows = 4, kValueVectors = 4, kValueQueries = 4, kQuadLanes = 0;
  static constexpr bool kReadsKeys = true, kRoundsToBf16 = true;
  static constexpr float kFp8Factor = 0x1p60f;
  using Quad = float32x4_t;
  using Bf16 = NoBf16;
  using Fp8 = uint16x8_t;  // the upper halves of eight floats
  using Codes = ByteCodes<WideningProducts>;
  using Nibbles = ByteNibbles<WideningProducts>;

  template <KvFormat format>
  static ALWAYS_INLINE Floats<4> load(const std::byte* bytes) {
    if constexpr (format == KvFormat::f32) return load_lanes<Floats<4>>(bytes);
    if constexpr (format == KvFormat::fp8) {
      const int8x8_t codes = vreinterpret_s8_u32(vdup_n_u32(load_lanes<uint32_t>(bytes)));
      return Floats<4>(lower_quad(in_place(codes)));
    }
    const auto* halves = reinterpret_cast<const uint16_t*>(bytes);
    if constexpr (format == KvFormat::f16)
      return Floats<4>(vcvt_f32_f16(vreinterpret_f16_u16(vld1_u16(halves))));
    // Not a shift: of those there is one a cycle.
    const uint16x8_t wide = vcombine_u16(vld1_u16(halves), vdup_n_u16(0));
    return Floats<4>(vreinterpretq_f32_u16(vzip1q_u16(vdupq_n_u16(0), wide)));
  }
  // Values of fp8 are 2^-120 of themselves: their exponents are moved into place and left as they are. The numbers that have
  // none of their own, below 2^-6, are exact like this, and as fast as the others.
  static ALWAYS_INLINE Fp8 load_fp8(const std::byte* bytes) {
    return in_place(vld1_s8(reinterpret_cast<const int8_t*>(bytes)));
  }
  static ALWAYS_INLINE Fp8 in_place(int8x8_t codes) {
    // The sign, widened, stands in five bits; it belongs in the first alone.
    return vbicq_u16(vreinterpretq_u16_s16(vshll_n_s8(codes, 4)), vdupq_n_u16(0x7800));
  }
  static ALWAYS_INLINE Quad lower_quad(Fp8 eight) {
    return vreinterpretq_f32_u16(vzip1q_u16(vdupq_n_u16(0), eight));
  }
  static ALWAYS_INLINE Quad upper_quad(Fp8 eight) {
    return vreinterpretq_f32_u16(vzip2q_u16(vdupq_n_u16(0), eight));
  }
  template <KvFormat format>
  static ALWAYS_INLINE Quad quad(const std::byte* bytes) {
    return Quad(load<format>(bytes));
  }
  template <int i>
  static ALWAYS_INLINE Floats<4> add_product(Floats<4> sum, Floats<4> a, Quad b) {
    return Floats<4>(vfmaq_laneq_f32(float32x4_t(sum), float32x4_t(a), b, i));
  }
  static ALWAYS_INLINE Floats<4> multiply_add(Floats<4> a, Floats<4> b, Floats<4> c) {
    return Floats<4>(vfmaq_f32(float32x4_t(c), float32x4_t(a), float32x4_t(b)));
  }
  static ALWAYS_INLINE Floats<4> larger(Floats<4> a, Floats<4> b) {
    return Floats<4>(vmaxq_f32(float32x4_t(a), float32x4_t(b)));
  }
};

}  // namespace
}  // namespace quire
