#include <algorithm>
#include <cmath>
#include <vector>

#include <gtest/gtest.h>

#include "backend/cpu/kernel_choice.h"
#include "backend/cpu/matmul/matmul_case.h"
#include "tensor/float16.h"

namespace quire {
namespace {

constexpr ActivationForm kQuantizedForms[] = {ActivationForm::q8_64, ActivationForm::q8_128,
                                              ActivationForm::q8_256};

TEST(QuantizeActivation, RoundsToTheNearestOf255Steps) {
  const size_t n = 480;  // no multiple of 128
  const std::vector<float> values = gaussian(n, 3);
  for (ActivationForm form : kQuantizedForms) {
    const size_t group = group_values(form);
    Buffer bytes(activation_row_bytes(form, n));
    scalar_kernels().quantize_activation[size_t(form)](values.data(), n, bytes.data());
    const Q8Row row(bytes.data(), n, group);
    EXPECT_LE(reinterpret_cast<const std::byte*>(row.outliers), bytes.data() + bytes.size());
    for (size_t g = 0; g < n; g += group) {
      const size_t end = std::min(g + group, n);
      float peak = 0.0f;
      for (size_t i = g; i < end; ++i) peak = std::max(peak, std::fabs(values[i]));
      const float scale = row.scales[g / group];
      EXPECT_EQ(scale, peak / 127.0f);
      for (size_t i = g; i < end; ++i) {
        EXPECT_LE(std::fabs(values[i] - scale * float(row.values[i])), 0.5001f * scale);
        EXPECT_GE(row.values[i], -127);
      }
    }
    for (size_t s = 0; s < n; s += 16) {
      int sum = 0, both = 0;
      for (size_t i = s; i < s + 16; ++i) sum += row.values[i];
      for (size_t i = s / 32 * 32; i < s / 32 * 32 + 32; ++i) both += row.values[i];
      EXPECT_EQ(row.sums16[s / 16], sum);
      EXPECT_EQ(row.sums32[s / 32], both);
      EXPECT_EQ(row.scaled_sums[s / 32], row.scales[s / group] * float(both));
    }
  }
}

TEST(QuantizeActivation, KeepsWhatStandsFarAboveTheOthersAsItIs) {
  const size_t n = kOutlierSpan + 96;
  for (ActivationForm form : kQuantizedForms) {
    const size_t group = group_values(form);
    for (float ratio : {1.0f, 0.997f, 0.98f, 0.8f, 0.01f}) {  // from all alike to one alone
      std::vector<float> values(n);
      for (size_t i = 0; i < n; ++i)
        values[i] = std::pow(ratio, float(i * 7 % kOutlierSpan)) * (i % 3 == 0 ? -1.0f : 1.0f);
      Buffer bytes(activation_row_bytes(form, n));
      scalar_kernels().quantize_activation[size_t(form)](values.data(), n, bytes.data());
      const Q8Row row(bytes.data(), n, group);
      for (size_t begin = 0; begin < n; begin += kOutlierSpan) {
        const size_t end = std::min(begin + kOutlierSpan, n), span = begin / kOutlierSpan;
        double sum = 0.0;
        for (size_t i = begin; i < end; ++i) sum += std::fabs(values[i]);
        const double most = outlier_means(group) * sum / double(end - begin);
        const Outlier* outlier = row.outliers + span * most_outliers(group);
        const Outlier* last = outlier + row.outlier_counts[span];
        EXPECT_LE(row.outlier_counts[span], most_outliers(group));
        float peak = 0.0f;  // of a group's other values
        for (size_t i = begin; i < end; ++i) {
          if (i % group == 0) peak = 0.0f;
          if (outlier != last && outlier->col == i - begin) {
            EXPECT_GT(std::fabs(values[i]), 0.999 * most);
            EXPECT_EQ(outlier->value, values[i]);
            EXPECT_EQ(row.values[i], 0);
            ++outlier;
          } else {
            EXPECT_LE(std::fabs(values[i]), 1.001 * most);
            peak = std::max(peak, std::fabs(values[i]));
          }
          if (i + 1 == end || (i + 1) % group == 0) {
            EXPECT_EQ(row.scales[i / group], peak >= 0x1p-100f ? peak / 127.0f : 0.0f) << ratio;
          }
        }
        EXPECT_EQ(outlier, last);
      }
    }
  }
}

TEST(QuantizeActivation, OfBf16RoundsToNearestAndFillsTheRowWithZeros) {
  for (const CpuKernels& kernels : present_kernels()) {
    for (size_t n : {1u, 15u, 16u, 31u, 32u, 33u, 100u}) {
      std::vector<float> values = gaussian(n, 3);
      values[0] = 1.0f + 0x1p-8f;                         // a tie: to even
      values[n / 2] = 1.0f + 0x1p-7f + 0x1p-8f;           // the same, upwards
      values[n - 1] = n % 2 == 0 ? float(NAN) : 3.4e38f;  // which becomes infinity
      Buffer bytes(activation_row_bytes(ActivationForm::bf16, n));
      std::fill_n(bytes.data(), bytes.size(), std::byte(0xab));
      kernels.quantize_activation[size_t(ActivationForm::bf16)](values.data(), n, bytes.data());
      const uint16_t* row = bytes.as<uint16_t>();
      for (size_t i = 0; i < n; ++i) EXPECT_EQ(row[i], f32_to_bf16(values[i])) << kernels.name << " " << i;
      for (size_t i = n; i % kBf16Cols != 0; ++i) EXPECT_EQ(row[i], 0) << kernels.name << " " << i;
      if (n > 2) {
        EXPECT_EQ(row[0], 0x3f80);
        EXPECT_EQ(row[n / 2], 0x3f82);
        EXPECT_EQ(row[n - 1], n % 2 == 0 ? 0x7fc0 : 0x7f80);
      }
    }
  }
}

TEST(QuantizeActivation, TakesTheSmallestNumbersForZero) {
  for (ActivationForm form : kQuantizedForms) {
    std::vector<float> values(256, 1e-40f);
    values[7] = 0.0f;
    Buffer bytes(activation_row_bytes(form, 256));
    scalar_kernels().quantize_activation[size_t(form)](values.data(), 256, bytes.data());
    const Q8Row row(bytes.data(), 256, group_values(form));
    EXPECT_EQ(row.scales[0], 0.0f);
    for (size_t i = 0; i < 256; ++i) EXPECT_EQ(row.values[i], 0);
  }
}

}  // namespace
}  // namespace quire
