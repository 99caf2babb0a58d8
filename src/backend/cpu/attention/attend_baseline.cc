#if defined(__aarch64__)
#include "backend/cpu/neon/attend_isa.h"
#else
#include "backend/cpu/attention/attend_pages.h"
#include "tensor/float16.h"
#endif

namespace quire {
namespace {

#if defined(__aarch64__)

using Baseline = Neon;

#else

// Without fused multiply-adds: each product is rounded before it is added.
struct Baseline {
  using Fetch = NearFetch;
  static constexpr size_t kLanes = 4, kScoreRows = 2, kValueVectors = 4, kValueQueries = 4, kQuadLanes = 0;
  static constexpr bool kReadsKeys = false, kRoundsToBf16 = true;
  static constexpr float kFp8Factor = 0x1p-60f;
  using Quad = const float*;
  using Bf16 = NoBf16;
  using Codes = PlainCodes;
  using Nibbles = PlainNibbles;

  template <KvFormat format>
  static ALWAYS_INLINE Floats<4> load(const std::byte* bytes) {
    if constexpr (format == KvFormat::f32) return load_lanes<Floats<4> >(bytes);
    if constexpr (format == KvFormat::fp8) {
      Floats<4> out;
      for (size_t i = 0; i < 4; ++i) out[i] = e4m3(uint8_t(bytes[i]));
      return out;
    }
    uint16_t halves[4];
    std::memcpy(halves, bytes, sizeof(halves));
    Floats<4> out;
    for (size_t i = 0; i < 4; ++i)
      out[i] = format == KvFormat::f16 ? f16_to_f32(halves[i]) : bf16_to_f32(halves[i]);
    return out;
  }
  template <KvFormat format>
  static ALWAYS_INLINE Quad quad(const std::byte* bytes) {
    static_assert(format == KvFormat::f32);
    return reinterpret_cast<const float*>(bytes);
  }
  template <int i>
  static ALWAYS_INLINE Floats<4> add_product(Floats<4> sum, Floats<4> a, Quad b) {
    return sum + a * b[i];
  }
  static ALWAYS_INLINE Floats<4> multiply_add(Floats<4> a, Floats<4> b, Floats<4> c) { return a * b + c; }
  static ALWAYS_INLINE Floats<4> larger(Floats<4> a, Floats<4> b) { return a > b ? a : b; }
};

#endif

struct Exact : Baseline {
  static constexpr bool kRoundsToBf16 = false;
};

}  // namespace

void attend_baseline(const AttendArgs& args) {
  PagesAttention<Baseline>(args).run();
}

void attend_exact(const AttendArgs& args) {
  PagesAttention<Exact>(args).run();
}

}  // namespace quire
