#pragma once

#include <bit>
#include <cstdint>

namespace quire {

// IEEE half precision as bits. Written without branches on the value, so that loops over them vectorize.
inline float f16_to_f32(uint16_t half) {
#if defined(__aarch64__)
  return float(std::bit_cast<__fp16>(half));
#else
  const uint32_t sign = uint32_t(half & 0x8000u) << 16;
  const uint32_t magnitude = uint32_t(half & 0x7fffu) << 13;
  // Scaling by 2^112 moves the exponent's bias; it also makes subnormals right. Infinity and NaN need the top
  // exponent.
  const float scaled = std::bit_cast<float>(magnitude) * 0x1p112f;
  const uint32_t bits =
      (half & 0x7c00u) == 0x7c00u ? (magnitude | 0x7f800000u) : std::bit_cast<uint32_t>(scaled);
  return std::bit_cast<float>(bits | sign);
#endif
}

// Rounds to nearest, ties to even; too large becomes infinity.
inline uint16_t f32_to_f16(float value) {
#if defined(__aarch64__)
  return std::bit_cast<uint16_t>(static_cast<__fp16>(value));
#else
  const uint32_t bits = std::bit_cast<uint32_t>(value);
  const uint32_t sign = (bits >> 16) & 0x8000u;
  const uint32_t magnitude = bits & 0x7fffffffu;
  if (magnitude > 0x7f800000u) return uint16_t(sign | 0x7e00u);    // NaN
  if (magnitude >= 0x47800000u) return uint16_t(sign | 0x7c00u);   // 65536 and up
  if (magnitude < 0x38800000u) {                                   // subnormal in half precision
    const float shifted = std::bit_cast<float>(magnitude) + 0.5f;  // aligns its bits at the bottom
    return uint16_t(sign | (std::bit_cast<uint32_t>(shifted) - 0x3f000000u));
  }
  const uint32_t rounded = magnitude - 0x38000000u + 0xfffu + ((magnitude >> 13) & 1u);
  return uint16_t(sign | (rounded >> 13));
#endif
}

inline float bf16_to_f32(uint16_t bits) {
  return std::bit_cast<float>(uint32_t(bits) << 16);
}

inline uint16_t f32_to_bf16(float value) {
  const uint32_t bits = std::bit_cast<uint32_t>(value);
  if ((bits & 0x7fffffffu) > 0x7f800000u) return uint16_t((bits >> 16) | 0x40u);  // NaN stays NaN
  return uint16_t((bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16);
}

}  // namespace quire
