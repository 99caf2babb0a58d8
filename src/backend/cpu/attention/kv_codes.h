// Rows of codes to floats, for one instruction set. Included by files that are compiled for different ones, so nothing
// here may have a name that the linker sees. Loops of fixed length, which compilers turn into vectors; no operation is
// fused, so every one of them gives the same bits.
#pragma once

#include <cstring>

#include "kv/layout/kv_layout.h"

#if defined(__F16C__)
#include <immintrin.h>
#endif

#ifndef ALWAYS_INLINE
#define ALWAYS_INLINE inline __attribute__((always_inline))
#endif

namespace quire {
namespace {

constexpr size_t kCodesAtOnce = 16;

template <class To, class From>
ALWAYS_INLINE To bits_as(From from) {
  static_assert(sizeof(To) == sizeof(From));
  To to;
  std::memcpy(&to, &from, sizeof(to));
  return to;
}

// A number of 16 bits, at any address.
ALWAYS_INLINE float read_half(const std::byte* at) {
#if defined(__aarch64__)
  __fp16 number;
  std::memcpy(&number, at, sizeof(number));
  return float(number);
#elif defined(__F16C__)
  uint16_t half;
  std::memcpy(&half, at, sizeof(half));
  return _cvtsh_ss(half);
#else
  uint16_t half;
  std::memcpy(&half, at, sizeof(half));
  const uint32_t magnitude = half & 0x7fffu, sign = uint32_t(half & 0x8000u) << 16;
  // Moved into place it has an exponent that is 112 too low; infinity and NaN keep the highest.
  float value = bits_as<float>(magnitude << 13) * 0x1p112f;
  if (magnitude >= 0x7c00u) value = bits_as<float>(0x7f800000u | (magnitude << 13));
  return bits_as<float>(bits_as<uint32_t>(value) | sign);
#endif
}

ALWAYS_INLINE float e4m3(uint8_t code) {
  const float magnitude = bits_as<float>(uint32_t(code & 0x7fu) << 20) * 0x1p120f;
  return bits_as<float>(bits_as<uint32_t>(magnitude) | uint32_t(code & 0x80u) << 24);
}

// use(i, count): kCodesAtOnce codes at a time, then what is left one by one.
template <class Use>
ALWAYS_INLINE void for_each_span(size_t count, Use use) {
  size_t i = 0;
  for (; i + kCodesAtOnce <= count; i += kCodesAtOnce) use(i, kCodesAtOnce);
  for (; i < count; ++i) use(i, size_t(1));
}

ALWAYS_INLINE void read_int8(const std::byte* row, size_t dim, float* out) {
  const float scale = read_half(row + dim);
  const auto* codes = reinterpret_cast<const int8_t*>(row);
  for_each_span(dim, [&](size_t begin, size_t count) {
    for (size_t i = begin; i < begin + count; ++i) out[i] = float(codes[i]) * scale;
  });
}

ALWAYS_INLINE void read_fp8(const std::byte* row, size_t dim, float* out) {
  const float scale = read_half(row + dim);
  const auto* codes = reinterpret_cast<const uint8_t*>(row);
  for_each_span(dim, [&](size_t begin, size_t count) {
    for (size_t i = begin; i < begin + count; ++i) out[i] = e4m3(codes[i]) * scale;
  });
}

// Of a group the first half of the values has the lower four bits of its bytes, the second half the upper.
ALWAYS_INLINE void read_q4(const std::byte* row, size_t dim, float* out) {
  const std::byte* scales = row + dim / 2;
  for (size_t group = 0; group < dim; group += kKvGroup, scales += 4) {
    const float scale = read_half(scales), least = read_half(scales + 2);
    const size_t half = (dim - group < kKvGroup ? dim - group : kKvGroup) / 2;
    const auto* codes = reinterpret_cast<const uint8_t*>(row) + group / 2;
    float* low = out + group;
    float* high = low + half;
    for_each_span(half, [&](size_t begin, size_t count) {
      for (size_t i = begin; i < begin + count; ++i) low[i] = float(codes[i] & 15) * scale + least;
      for (size_t i = begin; i < begin + count; ++i) high[i] = float(codes[i] >> 4) * scale + least;
    });
  }
}

// REQUIRES: a format of codes.
ALWAYS_INLINE void read_codes(KvFormat format, const std::byte* row, size_t dim, float* out) {
  if (format == KvFormat::int8) {
    read_int8(row, dim, out);
  } else if (format == KvFormat::fp8) {
    read_fp8(row, dim, out);
  } else {
    read_q4(row, dim, out);
  }
}

}  // namespace
}  // namespace quire
