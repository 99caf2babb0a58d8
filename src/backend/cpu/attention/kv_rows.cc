#include "backend/cpu/attention/kv_rows.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "backend/cpu/attention/kv_codes.h"
#include "tensor/float16.h"

namespace quire {
namespace {

constexpr float kNaN = std::numeric_limits<float>::quiet_NaN();

void write_half(float value, std::byte* at) {
  const uint16_t half = f32_to_f16(value);
  std::memcpy(at, &half, sizeof(half));
}

// The least f16 that is not below a number that is not negative.
float half_above(float value) {
  uint16_t half = f32_to_f16(value);
  if (f16_to_f32(half) < value) ++half;
  return f16_to_f32(half);
}

// Infinity and NaN come out as NaN.
float peak_of(std::span<const float> values) {
  float peak = 0;
  for (const float v : values) {
    if (!std::isfinite(v)) return kNaN;
    peak = std::max(peak, std::abs(v));
  }
  return peak;
}

void store_int8(std::span<const float> values, std::byte* row) {
  const float scale = half_above(peak_of(values) / 127.0f);
  auto* codes = reinterpret_cast<int8_t*>(row);
  for (size_t i = 0; i < values.size(); ++i) {
    const float code = scale > 0 ? std::nearbyint(values[i] / scale) : 0.0f;
    codes[i] = int8_t(std::clamp(code, -127.0f, 127.0f));
  }
  write_half(scale, row + values.size());
}

// The nearest e4m3, ties to even. REQUIRES: at most 448.
uint8_t to_e4m3(float magnitude) {
  if (magnitude < 0x1p-6f) return uint8_t(std::nearbyint(magnitude * 0x1p9f));
  int exponent = 0;
  const float fraction = std::frexp(magnitude, &exponent);  // 0.5 to 1
  return uint8_t((exponent + 6) * 8 + int(std::nearbyint((fraction * 2 - 1) * 8)));
}

void store_fp8(std::span<const float> values, std::byte* row) {
  const float scale = half_above(peak_of(values) / 448.0f);
  auto* codes = reinterpret_cast<uint8_t*>(row);
  for (size_t i = 0; i < values.size(); ++i) {
    const float magnitude = scale > 0 ? std::min(std::abs(values[i]) / scale, 448.0f) : 0.0f;
    codes[i] = uint8_t(to_e4m3(magnitude) | (std::signbit(values[i]) ? 0x80 : 0));
  }
  write_half(scale, row + values.size());
}

void store_q4(std::span<const float> values, std::byte* row) {
  std::byte* scales = row + values.size() / 2;
  auto* codes = reinterpret_cast<uint8_t*>(row);
  for (size_t begin = 0; begin < values.size(); begin += kKvGroup, scales += 4) {
    const auto group = values.subspan(begin, std::min(kKvGroup, values.size() - begin));
    const auto [low, high] = std::minmax_element(group.begin(), group.end());
    const bool finite = std::isfinite(peak_of(group));
    // The least is rounded first: the scale covers what it leaves.
    const float least = finite ? f16_to_f32(f32_to_f16(*low)) : kNaN;
    const float scale = finite ? half_above(std::max(0.0f, *high - least) / 15.0f) : kNaN;
    const auto code = [&](float value) {
      const float steps = scale > 0 ? std::nearbyint((value - least) / scale) : 0.0f;
      return uint8_t(std::clamp(steps, 0.0f, 15.0f));
    };
    const size_t half = group.size() / 2;
    for (size_t i = 0; i < half; ++i)
      codes[begin / 2 + i] = uint8_t(code(group[i]) | code(group[half + i]) << 4);
    write_half(scale, scales);
    write_half(least, scales + 2);
  }
}

}  // namespace

void turn_kv_row(std::span<float> values) {
  const size_t block = values.size() & -values.size();
  const float norm = 1.0f / std::sqrt(float(block));
  for (size_t begin = 0; begin < values.size(); begin += block) {
    float* v = values.data() + begin;
    for (size_t step = 1; step < block; step *= 2) {
      for (size_t i = 0; i < block; i += 2 * step) {
        for (size_t k = i; k < i + step; ++k) {
          const float a = v[k], b = v[k + step];
          v[k] = a + b;
          v[k + step] = a - b;
        }
      }
    }
    for (size_t i = 0; i < block; ++i) v[i] *= norm;
  }
}

void store_kv_row(KvFormat format, std::span<const float> values, std::byte* row) {
  if (values.empty()) return;
  switch (format) {
    case KvFormat::f32:
      std::memcpy(row, values.data(), values.size_bytes());
      return;
    case KvFormat::f16:
      for (size_t i = 0; i < values.size(); ++i) write_half(values[i], row + 2 * i);
      return;
    case KvFormat::bf16:
      for (size_t i = 0; i < values.size(); ++i) {
        const uint16_t half = f32_to_bf16(values[i]);
        std::memcpy(row + 2 * i, &half, sizeof(half));
      }
      return;
    case KvFormat::int8:
      return store_int8(values, row);
    case KvFormat::fp8:
      return store_fp8(values, row);
    case KvFormat::q4_plain:
      return store_q4(values, row);
    case KvFormat::q4:
      break;
  }
  thread_local std::vector<float> turned;
  turned.assign(values.begin(), values.end());
  turn_kv_row(turned);
  store_q4(turned, row);
}

void load_kv_row(KvFormat format, const std::byte* row, std::span<float> values) {
  if (values.empty()) return;
  if (!is_float(format)) return read_codes(format, row, values.size(), values.data());
  if (format == KvFormat::f32) {
    std::memcpy(values.data(), row, values.size_bytes());
    return;
  }
  for (size_t i = 0; i < values.size(); ++i) {
    uint16_t half;
    std::memcpy(&half, row + 2 * i, sizeof(half));
    values[i] = format == KvFormat::f16 ? f16_to_f32(half) : bf16_to_f32(half);
  }
}

}  // namespace quire
