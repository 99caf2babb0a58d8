#pragma once

#include <algorithm>
#include <bit>
#include <cstdint>

namespace quire {

// OCP 8-bit floats "e4m3fn" as bits: bias 7, no infinity, NaN only at 0x7f and 0xff, largest value 448.
constexpr float f8_e4m3_to_f32(uint8_t bits) {
  const uint32_t sign = uint32_t(bits & 0x80u) << 24;
  const uint32_t magnitude = uint32_t(bits & 0x7fu) << 20;
  // Scaling by 2^120 moves the exponent's bias; it also makes subnormals right.
  const float scaled = std::bit_cast<float>(magnitude) * 0x1p120f;
  const uint32_t value = (bits & 0x7fu) == 0x7fu ? 0x7fc00000u : std::bit_cast<uint32_t>(scaled);
  return std::bit_cast<float>(value | sign);
}

// Rounds to nearest, ties to even; too large (infinity as well) becomes 448.
inline uint8_t f32_to_f8_e4m3(float value) {
  const uint32_t bits = std::bit_cast<uint32_t>(value);
  const uint32_t sign = (bits >> 24) & 0x80u;
  if ((bits & 0x7fffffffu) > 0x7f800000u) return uint8_t(sign | 0x7fu);  // NaN
  const uint32_t magnitude = std::min(bits & 0x7fffffffu, std::bit_cast<uint32_t>(448.0f));
  if (magnitude < std::bit_cast<uint32_t>(0x1p-6f)) {                 // subnormal in 8 bits: steps of 2^-9
    const float shifted = std::bit_cast<float>(magnitude) + 0x1p14f;  // aligns its bits at the bottom
    return uint8_t(sign | (std::bit_cast<uint32_t>(shifted) - std::bit_cast<uint32_t>(0x1p14f)));
  }
  const uint32_t rounded = magnitude - (120u << 23) + 0x7ffffu + ((magnitude >> 20) & 1u);
  return uint8_t(sign | (rounded >> 20));
}

}  // namespace quire
