#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>

#include "backend/cpu/scalar/matmul.h"
#include "base/check.h"
#include "tensor/float16.h"

namespace quire::scalar {
namespace {

// Returns the scale.
float quantize_group(const float* values, size_t count, int8_t* out) {
  // As integers, magnitudes keep their order, and infinity and NaN come out on top.
  uint32_t peak_bits = 0;
  for (size_t i = 0; i < count; ++i) {
    peak_bits = std::max(peak_bits, std::bit_cast<uint32_t>(values[i]) & 0x7fffffffu);
  }
  const float peak = std::bit_cast<float>(peak_bits);
  if (!(peak >= 0x1p-100f && peak_bits < 0x7f800000u)) {
    std::memset(out, 0, count);
    return peak_bits < 0x7f800000u ? 0.0f : NAN;
  }
  const float inverse = 127.0f / peak;
  for (size_t i = 0; i < count; ++i) {
    // 1.5 * 2^23 leaves the rounded value at the bottom of the float's bits.
    out[i] =
        int8_t(std::bit_cast<int32_t>(values[i] * inverse + 0x1.8p23f) - std::bit_cast<int32_t>(0x1.8p23f));
  }
  return peak / 127.0f;
}

}  // namespace

template <ActivationForm kForm>
void quantize_q8(const float* values, size_t n, std::byte* bytes) {
  CHECK(n % 32 == 0);
  const size_t group = group_values(kForm);
  const MutableQ8Row row(bytes, n, group);
  for (size_t i = 0; i < n; i += group) {
    row.scales[i / group] = quantize_group(values + i, std::min(group, n - i), row.values + i);
  }
  for (size_t i = 0; i < n; i += 32) {
    const float scale = row.scales[i / group];
    int sums[2] = {};
    for (size_t k = 0; k < 16; ++k) {
      sums[0] += row.values[i + k];
      sums[1] += row.values[i + 16 + k];
    }
    row.sums16[i / 16] = scale * float(sums[0]);
    row.sums16[i / 16 + 1] = scale * float(sums[1]);
    row.sums32[i / 32] = scale * float(sums[0] + sums[1]);
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

}  // namespace quire::scalar
