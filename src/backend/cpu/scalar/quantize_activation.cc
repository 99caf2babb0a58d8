#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>

#include "backend/cpu/scalar/matmul.h"
#include "base/check.h"
#include "tensor/float16.h"

namespace quire::scalar {
namespace {

constexpr float kLeastPeak = 0x1p-100f;

// 1.5 * 2^23 leaves the rounded value at the bottom of the float's bits.
int8_t nearest(float value) {
  return int8_t(std::bit_cast<int32_t>(value + 0x1.8p23f) - std::bit_cast<int32_t>(0x1.8p23f));
}

uint32_t magnitude_bits(float value) {
  return std::bit_cast<uint32_t>(value) & 0x7fffffffu;
}

// Returns the scale.
float round_values(const float* values, size_t count, float peak, int8_t* out) {
  if (peak < kLeastPeak) {
    std::memset(out, 0, count);
    return 0.0f;
  }
  const float inverse = 127.0f / peak;
  for (size_t i = 0; i < count; ++i) out[i] = nearest(values[i] * inverse);
  return peak / 127.0f;
}

float peak_of(const float* values, size_t count) {
  uint32_t bits = 0;  // as integers, magnitudes keep their order, and infinity and NaN come out on top
  for (size_t i = 0; i < count; ++i) bits = std::max(bits, magnitude_bits(values[i]));
  return std::bit_cast<float>(bits);
}

}  // namespace

float round_without_outliers(const float* values, size_t count, float most, int8_t* out, size_t first_col,
                             SpanOutliers& outliers) {
  const uint32_t before = *outliers.count;
  float peak = 0.0f;  // of the others
  for (size_t begin = 0; begin < count; begin += kSumLanes) {
    const float here = peak_of(values + begin, kSumLanes);
    if (here <= most) {
      peak = std::max(peak, here);
      continue;
    }
    for (size_t i = begin; i < begin + kSumLanes; ++i) {
      const float magnitude = std::fabs(values[i]);
      if (magnitude <= most) {
        peak = std::max(peak, magnitude);
        continue;
      }
      CHECK(*outliers.count < outliers.most);
      outliers.list[(*outliers.count)++] = {uint32_t(first_col + i), values[i]};
    }
  }
  const float scale = round_values(values, count, peak, out);
  for (uint32_t k = before; k < *outliers.count; ++k) out[outliers.list[k].col - first_col] = 0;
  return scale;
}

namespace {

// Above what values are outliers. Not a number where a value is none, and then there are no outliers.
float most_of_span(const float* values, size_t count, size_t group) {
  float lanes[kSumLanes] = {};
  for (size_t i = 0; i < count; i += kSumLanes) {
    for (size_t k = 0; k < kSumLanes; ++k) lanes[k] += std::fabs(values[i + k]);
  }
  for (size_t half = kSumLanes / 2; half > 0; half /= 2) {
    for (size_t k = 0; k < half; ++k) lanes[k] += lanes[k + half];
  }
  return outlier_means(group) * (lanes[0] / float(count));
}

// Returns the scale.
float quantize_group(const float* values, size_t count, float most, int8_t* out, size_t first_col,
                     SpanOutliers& outliers) {
  const float peak = peak_of(values, count);
  if (!(peak >= kLeastPeak && peak < INFINITY)) {
    std::memset(out, 0, count);
    return peak < kLeastPeak ? 0.0f : NAN;
  }
  if (!(peak > most)) return round_values(values, count, peak, out);
  return round_without_outliers(values, count, most, out, first_col, outliers);
}

}  // namespace

template <ActivationForm kForm>
void quantize_q8(const float* values, size_t n, std::byte* bytes) {
  CHECK(n % 32 == 0);
  const size_t group = group_values(kForm);
  const MutableQ8Row row(bytes, n, group);
  float most = 0.0f;
  for (size_t i = 0; i < n; i += group) {
    if (i % kOutlierSpan == 0) most = most_of_span(values + i, std::min(kOutlierSpan, n - i), group);
    SpanOutliers outliers = outliers_at(row, group, i);
    row.scales[i / group] =
        quantize_group(values + i, std::min(group, n - i), most, row.values + i, i % kOutlierSpan, outliers);
  }
  for (size_t i = 0; i < n; i += 32) {
    const float scale = row.scales[i / group];
    int sums[2] = {};
    for (size_t k = 0; k < 16; ++k) {
      sums[0] += row.values[i + k];
      sums[1] += row.values[i + 16 + k];
    }
    row.scaled_sums[i / 32] = scale * float(sums[0] + sums[1]);
    row.sums16[i / 16] = int16_t(sums[0]);
    row.sums16[i / 16 + 1] = int16_t(sums[1]);
    row.sums32[i / 32] = int16_t(sums[0] + sums[1]);
  }
}

template void quantize_q8<ActivationForm::q8_64>(const float*, size_t, std::byte*);
template void quantize_q8<ActivationForm::q8_128>(const float*, size_t, std::byte*);
template void quantize_q8<ActivationForm::q8_256>(const float*, size_t, std::byte*);

void to_f16(const float* values, size_t count, uint16_t* out) {
  for (size_t i = 0; i < count; ++i) out[i] = f32_to_f16(values[i]);
}

void copy_f32(const float* values, size_t n, std::byte* row) {
  std::memcpy(row, values, n * sizeof(float));
}

void round_to_bf16(const float* values, size_t n, std::byte* row) {
  uint16_t* out = reinterpret_cast<uint16_t*>(row);
  for (size_t i = 0; i < n; ++i) out[i] = f32_to_bf16(values[i]);
  for (size_t i = n; i % kBf16Cols != 0; ++i) out[i] = 0;
}

}  // namespace quire::scalar
