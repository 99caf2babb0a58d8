#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>

#include "backend/cpu/scalar/matmul.h"
#include "base/check.h"

namespace quire::scalar {
namespace {

// Returns the scale.
template <size_t kGroup>
float quantize_group(const float* values, int8_t* out) {
  // As integers, magnitudes keep their order, and infinity and NaN come out on top.
  uint32_t peak_bits = 0;
  for (size_t i = 0; i < kGroup; ++i) {
    peak_bits = std::max(peak_bits, std::bit_cast<uint32_t>(values[i]) & 0x7fffffffu);
  }
  const float peak = std::bit_cast<float>(peak_bits);
  if (!(peak >= 0x1p-100f && peak_bits < 0x7f800000u)) {
    std::memset(out, 0, kGroup);
    return peak_bits < 0x7f800000u ? 0.0f : NAN;
  }
  const float inverse = 127.0f / peak;
  for (size_t i = 0; i < kGroup; ++i) {
    // 1.5 * 2^23 leaves the rounded value at the bottom of the float's bits.
    out[i] =
        int8_t(std::bit_cast<int32_t>(values[i] * inverse + 0x1.8p23f) - std::bit_cast<int32_t>(0x1.8p23f));
  }
  return peak / 127.0f;
}

template <size_t kGroup, size_t kSummed>
void quantize_q8(const float* values, size_t n, std::byte* bytes) {
  CHECK(n % kGroup == 0);
  const MutableQ8Row row(bytes, n, kGroup);
  for (size_t i = 0; i < n; i += kGroup) {
    row.scales[i / kGroup] = quantize_group<kGroup>(values + i, row.values + i);
  }
  for (size_t i = 0; i < n; i += kSummed) {
    int sum = 0;
    for (size_t k = 0; k < kSummed; ++k) sum += row.values[i + k];
    row.sums[i / kSummed] = int16_t(sum);
  }
}

}  // namespace

void quantize_q8_32(const float* values, size_t n, std::byte* row) {
  quantize_q8<32, 32>(values, n, row);
}

void quantize_q8_256(const float* values, size_t n, std::byte* row) {
  quantize_q8<256, 16>(values, n, row);
}

void copy_f32(const float* values, size_t n, std::byte* row) {
  std::memcpy(row, values, n * sizeof(float));
}

}  // namespace quire::scalar
