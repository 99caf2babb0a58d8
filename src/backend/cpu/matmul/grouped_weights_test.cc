#include "backend/cpu/matmul/grouped_weights.h"

#include <cmath>
#include <limits>

#include <gtest/gtest.h>

#include "backend/cpu/matmul/matmul_case.h"
#include "tensor/float16.h"

namespace quire {
namespace {

template <class Format, size_t kGroup>
void expect_near_the_file(DType dtype, size_t cols, uint32_t seed) {
  SCOPED_TRACE(std::string(traits(dtype).name) + " " + std::to_string(cols));
  std::vector<float> values = gaussian(cols, seed), file(cols);
  for (size_t c = 0; c < cols; ++c) values[c] *= 0.01f * float(1 + c / 32 % 3);
  std::vector<std::byte> row(row_bytes(dtype, cols));
  quantize_row(dtype, values, row.data());
  dequantize_row(dtype, row.data(), file);
  GroupedRowBlock<Format, kGroup> block;
  for (size_t begin = 0; begin < cols; begin += kGroupedBlockCols) {
    block.read(reinterpret_cast<const uint8_t*>(row.data()), begin, cols);
    for (size_t c = 0; c < kGroupedBlockCols; ++c) {
      if (begin + c >= cols) {
        ASSERT_EQ(block.codes[c], 0) << c;
        continue;
      }
      const float scale = bf16_to_f32(block.scales[c / kGroup]);
      ASSERT_GE(block.codes[c], -127);
      // Half a step, and what the rounding of ratios and offsets adds.
      ASSERT_NEAR(scale * float(block.codes[c]), file[begin + c], 0.54f * scale) << begin + c;
    }
  }
}

TEST(GroupedWeights, AreThoseOfTheFileToHalfAStep) {
#define QUIRE_FORMAT(dtype, Format, activation)                                                              \
  for (size_t blocks : {1u, 3u, 5u, 9u})                                                                     \
    ASSERT_NO_FATAL_FAILURE((expect_near_the_file<format::Format, group_values(ActivationForm::activation)>( \
        DType::dtype, blocks * format::Format::kValues, uint32_t(blocks))));
#include "backend/cpu/matmul/grouped_formats.inc"
#undef QUIRE_FORMAT
}

TEST(GroupedWeights, UseAllOfTheStepsThereAre) {
  std::vector<float> values = gaussian(256, 5);
  std::vector<std::byte> row(row_bytes(DType::q8_0, 256));
  quantize_row(DType::q8_0, values, row.data());
  GroupedRowBlock<format::Q8_0, 128> block;
  block.read(reinterpret_cast<const uint8_t*>(row.data()), 0, 256);
  for (size_t g = 0; g < 2; ++g) {
    int most = 0;
    for (size_t c = 128 * g; c < 128 * (g + 1); ++c) most = std::max(most, std::abs(int(block.codes[c])));
    EXPECT_GE(most, 126);  // the scale is rounded up by less than a 128th
  }
}

TEST(GroupedWeights, ShowWeightsThatAreNotFinite) {
  std::vector<std::byte> row(row_bytes(DType::q4_0, 256));
  quantize_row(DType::q4_0, gaussian(256, 5), row.data());
  const uint16_t infinity = 0x7c00;
  std::memcpy(row.data() + 5 * 18, &infinity, sizeof(infinity));
  GroupedRowBlock<format::Q4_0, 128> block;
  block.read(reinterpret_cast<const uint8_t*>(row.data()), 0, 256);
  EXPECT_TRUE(std::isfinite(bf16_to_f32(block.scales[0])));
  EXPECT_TRUE(std::isnan(bf16_to_f32(block.scales[1])));
}

TEST(GroupedWeights, OfTheSmallestNumbersAreZero) {
  std::vector<std::byte> row(row_bytes(DType::mxfp4, 128));  // exponent 0: 2^-128
  std::fill(row.begin() + 1, row.begin() + 17, std::byte(0x77));
  GroupedRowBlock<format::Mxfp4, 128> block;
  block.read(reinterpret_cast<const uint8_t*>(row.data()), 0, 128);
  EXPECT_EQ(block.scales[0], 0);
  for (int8_t code : block.codes) EXPECT_EQ(code, 0);
}

TEST(GroupedKernels, DifferFromTheExactOnesByTheRoundingOfWeightsAndActivations) {
  // Activations cost 0.6 to 0.7 % as in the scalar twin. Weights cost about as much: where 128 gaussian numbers share a scale the
  // step is a 127th of 2.7 deviations, whose 12th root is 0.6 %.
#define QUIRE_FORMAT(dtype, Format, activation)                                 \
  {                                                                             \
    const MatmulCase test(DType::dtype, 64, 8 * format::Format::kValues, 16);   \
    const std::vector<float> out = test.product(grouped_kernels());             \
    const std::vector<double> expected = test.true_product();                   \
    double error = 0, total = 0;                                                \
    for (size_t i = 0; i < out.size(); ++i) {                                   \
      error += (double(out[i]) - expected[i]) * (double(out[i]) - expected[i]); \
      total += expected[i] * expected[i];                                       \
    }                                                                           \
    EXPECT_LE(std::sqrt(error / total), 0.0115) << #dtype;                      \
    EXPECT_GE(std::sqrt(error / total), 0.005) << #dtype;                       \
  }
#include "backend/cpu/matmul/grouped_formats.inc"
#undef QUIRE_FORMAT
}

}  // namespace
}  // namespace quire
