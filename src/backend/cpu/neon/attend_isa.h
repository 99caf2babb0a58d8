// Attention with NEON as every arm64 has it. Included by files that are compiled for different instruction sets, so nothing
// here may have a name that the linker sees.
#pragma once

#include <arm_neon.h>

#include "backend/cpu/attend_pages.h"
#include "backend/cpu/neon/byte_codes.h"
#include "backend/cpu/neon/byte_nibbles.h"

namespace quire {
namespace {

struct Neon {
  static constexpr size_t kLanes = 4, kScoreRows = 4, kValueVectors = 4;
  static constexpr bool kReadsKeys = true, kScoresQuads = false;
  using Quad = float32x4_t;
  using Codes = ByteCodes<WideningProducts>;
  using Nibbles = ByteNibbles<WideningProducts>;

  template <KvFormat format>
  static ALWAYS_INLINE Floats<4> load(const std::byte* bytes) {
    if constexpr (format == KvFormat::f32) return load_lanes<Floats<4>>(bytes);
    const auto* halves = reinterpret_cast<const uint16_t*>(bytes);
    if constexpr (format == KvFormat::f16)
      return Floats<4>(vcvt_f32_f16(vreinterpret_f16_u16(vld1_u16(halves))));
    // Not a shift: of those there is one a cycle.
    const uint16x8_t wide = vcombine_u16(vld1_u16(halves), vdup_n_u16(0));
    return Floats<4>(vreinterpretq_f32_u16(vzip1q_u16(vdupq_n_u16(0), wide)));
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
