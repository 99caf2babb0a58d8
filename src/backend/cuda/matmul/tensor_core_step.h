#pragma once

#include <cstdint>

#include "backend/cuda/device_math.h"

// The scalar twin of one tensor-core step (mma.sync and wgmma over 16 k) on Hopper and Blackwell: 16 products and an f32
// accumulator are aligned to the largest exponent among them, cut to 25 fraction bits, added exactly, and the sum is cut
// to f32. Cut means toward zero. For finite numbers.

namespace quire::cuda {

enum class HalfKind : uint8_t { bf16, f16 };

struct HalfParts {
  int64_t magnitude;  // with the hidden bit
  int exponent;       // of the bit in front of the fraction
  bool negative;
};

template <HalfKind kind>
QUIRE_BOTH HalfParts parts_of(uint16_t bits) {
  constexpr int kFraction = kind == HalfKind::bf16 ? 7 : 10, kBias = kind == HalfKind::bf16 ? 127 : 15;
  const int biased = (bits & 0x7fff) >> kFraction;
  const int fraction = bits & ((1 << kFraction) - 1);
  return {biased == 0 ? fraction : fraction | 1 << kFraction, (biased == 0 ? 1 : biased) - kBias,
          (bits & 0x8000) != 0};
}

// magnitude * 2^shift, cut.
QUIRE_BOTH int64_t shifted_by(int64_t magnitude, int shift) {
  if (shift >= 0) return magnitude << shift;
  return shift < -62 ? 0 : magnitude >> -shift;
}

QUIRE_BOTH int highest_bit(uint64_t value) {
#if defined(__CUDA_ARCH__)
  return 63 - __clzll(static_cast<long long>(value));
#else
  return 63 - std::countl_zero(value);
#endif
}

// sum * 2^exponent as f32, cut.
QUIRE_BOTH float cut_to_float(int64_t sum, int exponent) {
  if (sum == 0) return 0.0f;
  const uint32_t sign = sum < 0 ? 0x80000000u : 0;
  const uint64_t magnitude = uint64_t(sum < 0 ? -sum : sum);
  const int top = highest_bit(magnitude);
  const int lowest =
      exponent + top < -126 ? -149 : exponent + top - 23;  // the exponent of the last bit that is kept
  const int drop = lowest - exponent;
  const uint64_t kept = drop <= 0 ? magnitude << -drop : drop > 63 ? 0 : magnitude >> drop;
  if (kept >> 23 == 0) return float_of(sign | uint32_t(kept));  // subnormal
  const int biased = lowest + 23 + 127;
  if (biased >= 255) return float_of(sign | 0x7f7fffffu);
  return float_of(sign | uint32_t(biased) << 23 | (uint32_t(kept) & 0x7fffffu));
}

// c + the sum of a[i] * b[i].
template <HalfKind kind>
QUIRE_BOTH float tensor_core_step(const uint16_t (&a)[16], const uint16_t (&b)[16], float c) {
  constexpr int kKept = 25, kProductFraction = kind == HalfKind::bf16 ? 14 : 20;
  int64_t magnitudes[16];
  int exponents[16];
  int largest = -100'000;
  for (int i = 0; i < 16; ++i) {
    const HalfParts x = parts_of<kind>(a[i]), y = parts_of<kind>(b[i]);
    const int64_t product = x.magnitude * y.magnitude;
    magnitudes[i] = x.negative != y.negative ? -product : product;
    exponents[i] = x.exponent + y.exponent;  // as it is before a carry out of the product's fraction
    if (product != 0 && exponents[i] > largest) largest = exponents[i];
  }
  const uint32_t bits = bits_of(c);
  const int biased = int(bits >> 23 & 255);
  const int64_t accumulator = int64_t(bits & 0x7fffffu) | (biased == 0 ? 0 : 0x800000);
  const int exponent = (biased == 0 ? 1 : biased) - 127;
  if (accumulator != 0 && exponent > largest) largest = exponent;
  int64_t sum = 0;
  for (int i = 0; i < 16; ++i) {
    const int64_t magnitude = magnitudes[i] < 0 ? -magnitudes[i] : magnitudes[i];
    const int64_t term = shifted_by(magnitude, kKept - kProductFraction - (largest - exponents[i]));
    sum += magnitudes[i] < 0 ? -term : term;
  }
  const int64_t term = shifted_by(accumulator, kKept - 23 - (largest - exponent));
  sum += bits >> 31 != 0 ? -term : term;
  return cut_to_float(sum, largest - kKept);
}

}  // namespace quire::cuda
