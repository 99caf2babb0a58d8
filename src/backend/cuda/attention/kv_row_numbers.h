#pragma once

#include <cstddef>
#include <cstdint>

#include "backend/cuda/device_math.h"
#include "backend/cuda/matmul/tensor_core_step.h"
#include "kv/layout/kv_layout.h"

// Rows of pages as attention multiplies them, whatever their format: 16-bit numbers, and of some formats a factor of the whole
// row. Written plainly, for both sides; kernels have it faster (kv_row_pieces.cuh), with the same bits.
//
//   f16, bf16  as they are
//   f32        rounded to bf16
//   int8, fp8  the codes, which bf16 holds exactly. The row's scale is its factor: scores are multiplied with it, and shares
//              before they are rounded
//   q4         code * scale + least, rounded to f16 once

namespace quire::cuda {

// What a row's numbers are. Queries are rounded to that of the keys.
constexpr HalfKind numbers_of(KvFormat format) {
  return format == KvFormat::f16 || format == KvFormat::q4 || format == KvFormat::q4_plain ? HalfKind::f16
                                                                                           : HalfKind::bf16;
}
constexpr bool has_factors(KvFormat format) {
  return format == KvFormat::int8 || format == KvFormat::fp8;
}

QUIRE_BOTH uint32_t byte_at(const std::byte* at) {
  return uint32_t(*reinterpret_cast<const uint8_t*>(at));
}
QUIRE_BOTH uint16_t half_at(const std::byte* at) {
  return *reinterpret_cast<const uint16_t*>(at);
}

QUIRE_BOTH float f16_number(uint16_t bits) {
  const uint32_t magnitude = uint32_t(bits & 0x7fffu) << 13, sign = uint32_t(bits & 0x8000u) << 16;
  // Moved into place it has an exponent that is 112 too low; infinity and NaN keep the highest.
  const uint32_t scaled =
      (bits & 0x7c00u) == 0x7c00u ? (magnitude | 0x7f800000u) : bits_of(float_of(magnitude) * 0x1p112f);
  return float_of(scaled | sign);
}

QUIRE_BOTH float bf16_number(uint16_t bits) {
  return float_of(uint32_t(bits) << 16);
}

// To nearest, ties to even.
QUIRE_BOTH uint16_t bf16_bits(float value) {
  const uint32_t bits = bits_of(value);
  if (value != value) return 0x7fff;
  return uint16_t((bits + 0x7fffu + (bits >> 16 & 1u)) >> 16);
}

QUIRE_BOTH uint16_t f16_bits(float value) {
  const uint32_t bits = bits_of(value), sign = bits >> 16 & 0x8000u, magnitude = bits & 0x7fffffffu;
  if (magnitude > 0x7f800000u) return 0x7fff;
  if (magnitude >= 0x477ff000u) return uint16_t(sign | 0x7c00u);  // what would be rounded to 65536, and more
  if (magnitude < 0x38800000u)                                    // subnormal: its bits align at the bottom
    return uint16_t(sign | (bits_of(float_of(magnitude) + 0.5f) - 0x3f000000u));
  return uint16_t(sign | (magnitude - 0x38000000u + 0xfffu + (magnitude >> 13 & 1u)) >> 13);
}

QUIRE_BOTH uint64_t bits_of(double value) {
#if defined(__CUDA_ARCH__)
  return uint64_t(__double_as_longlong(value));
#else
  return std::bit_cast<uint64_t>(value);
#endif
}

// A number cut to f32, and where something was cut off, its last bit set: rounded further it is as if it had been rounded once.
QUIRE_BOTH float cut_to_odd(double value) {
  const uint64_t bits = bits_of(value), cut = bits & ~((uint64_t(1) << 29) - 1);
#if defined(__CUDA_ARCH__)
  const float kept = float(__longlong_as_double(static_cast<long long>(cut)));
#else
  const float kept = float(std::bit_cast<double>(cut));
#endif
  return cut == bits ? kept : float_of(bits_of(kept) | 1u);
}

QUIRE_BOTH float e4m3_number(uint32_t code) {
  return float_of(bits_of(float_of((code & 0x7fu) << 20) * 0x1p120f) | (code & 0x80u) << 24);
}

// Of q4: where dimension d is in its row.
struct NibblePlace {
  uint32_t byte, shift, scales;
};
QUIRE_BOTH NibblePlace nibble_place(uint32_t dim, uint32_t d) {
  constexpr uint32_t kGroup = uint32_t(kKvGroup);
  const uint32_t group = d / kGroup, left = dim - group * kGroup, half = (left < kGroup ? left : kGroup) / 2;
  const uint32_t in_group = d % kGroup, upper = in_group >= half ? 1u : 0u;
  return {group * kGroup / 2 + in_group - upper * half, 4 * upper, dim / 2 + 4 * group};
}

QUIRE_BOTH uint16_t q4_number(const std::byte* row, uint32_t dim, uint32_t d) {
  const NibblePlace place = nibble_place(dim, d);
  const double code = double(byte_at(row + place.byte) >> place.shift & 15u);
  const float scale = f16_number(half_at(row + place.scales)),
              least = f16_number(half_at(row + place.scales + 2));
  return f16_bits(cut_to_odd(code * double(scale) + double(least)));  // exact in double precision
}

// The number of dimension d, in bits of numbers_of(format).
QUIRE_BOTH uint16_t row_number(KvFormat format, const std::byte* row, uint32_t dim, uint32_t d) {
  switch (format) {
    case KvFormat::f32:
      return bf16_bits(reinterpret_cast<const float*>(row)[d]);
    case KvFormat::f16:
    case KvFormat::bf16:
      return half_at(row + 2 * d);
    case KvFormat::int8:
      return bf16_bits(float(int8_t(byte_at(row + d))));
    case KvFormat::fp8:
      return bf16_bits(e4m3_number(byte_at(row + d)));
    default:
      return q4_number(row, dim, d);
  }
}

QUIRE_BOTH float row_factor(KvFormat format, const std::byte* row, uint32_t dim) {
  return has_factors(format) ? f16_number(half_at(row + dim)) : 1.0f;
}

// As a float, factor and all, and f32 as it is: what is not multiplied by tensor cores. Of q4 not rounded but to f32.
QUIRE_BOTH float row_value(KvFormat format, const std::byte* row, uint32_t dim, uint32_t d) {
  switch (format) {
    case KvFormat::f32:
      return reinterpret_cast<const float*>(row)[d];
    case KvFormat::f16:
      return f16_number(half_at(row + 2 * d));
    case KvFormat::bf16:
      return bf16_number(half_at(row + 2 * d));
    case KvFormat::int8:
      return float(int8_t(byte_at(row + d))) * f16_number(half_at(row + dim));
    case KvFormat::fp8:
      return e4m3_number(byte_at(row + d)) * f16_number(half_at(row + dim));
    default: {
      const NibblePlace place = nibble_place(dim, d);
      return float(byte_at(row + place.byte) >> place.shift & 15u) * f16_number(half_at(row + place.scales)) +
             f16_number(half_at(row + place.scales + 2));
    }
  }
}

}  // namespace quire::cuda
