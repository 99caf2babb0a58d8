#include <algorithm>
#include <bit>
#include <cmath>
#include <random>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "backend/cpu/kernel_choice.h"
#include "backend/cpu/matmul/matmul_case.h"
#include "tensor/float16.h"

namespace quire {
namespace {

using Case = MatmulCase;

std::vector<DType> weight_types() {
  std::vector<DType> types;
  for (size_t i = 0; i < kDTypeCount; ++i) {
    if (DType(i) != DType::i32) types.push_back(DType(i));
  }
  return types;
}

// The exact reference, the twins, and every instruction set of this machine.
std::vector<CpuKernels> all_kernels() {
  std::vector<CpuKernels> sets = present_kernels();
  sets.push_back(exact_kernels());
  sets.push_back(grouped_kernels());
  return sets;
}

template <class A, class B>
double relative_rms(const A& values, const B& reference) {
  double error = 0.0, total = 0.0;
  for (size_t i = 0; i < values.size(); ++i) {
    error += std::pow(double(values[i]) - double(reference[i]), 2.0);
    total += std::pow(double(reference[i]), 2.0);
  }
  return std::sqrt(error / total);
}

size_t ugly_width(DType dtype, size_t blocks) {
  return traits(dtype).block_values == 1 ? 16 * blocks + 5 : blocks * traits(dtype).block_values;
}

TEST(ExactMatmul, IsTheProductOfTheDequantizedWeights) {
  for (DType dtype : weight_types()) {
    for (size_t blocks : {1u, 3u, 10u}) {
      const Case test(dtype, 7, ugly_width(dtype, blocks), 5);
      EXPECT_LE(relative_rms(test.product(exact_kernels()), test.true_product()), 5e-7) << traits(dtype).name;
    }
  }
}

TEST(ExactMatmul, AddsInSixteenLanes) {
  const Case test(DType::f32, 3, 16 * 9 + 11, 2);
  const std::vector<float> out = test.product(exact_kernels());
  std::vector<float> row(test.cols);
  for (size_t r = 0; r < test.rows; ++r) {
    dequantize_row(DType::f32, test.matrix().row(r), row);
    for (size_t t = 0; t < test.tokens; ++t) {
      float lanes[16] = {};
      for (size_t i = 0; i < test.cols; ++i) {
        lanes[i % 16] = std::fma(row[i], test.input[t * test.cols + i], lanes[i % 16]);
      }
      for (size_t half : {8u, 4u, 2u, 1u}) {
        for (size_t i = 0; i < half; ++i) lanes[i] += lanes[i + half];
      }
      EXPECT_EQ(out[t * test.rows + r], lanes[0]);
    }
  }
}

TEST(ScalarMatmul, DiffersFromTheExactOneOnlyByTheRoundingOfActivations) {
  // Rounding gaussian activations to int8 leaves a relative error of about (peak / 127) / sqrt(12): 0.55 %
  // with a peak of 2.4 in 64 values, 0.7 % with 2.9 in 256. It carries over to random products; an offset,
  // whose products partly cancel, makes it larger.
  for (DType dtype : weight_types()) {
    const Case test(dtype, 64, ugly_width(dtype, 8), 16);
    const double error = relative_rms(test.product(scalar_kernels()), test.true_product());
    switch (scalar_kernels().form[size_t(dtype)]) {
      case ActivationForm::f32:
        EXPECT_LE(error, 5e-7) << traits(dtype).name;
        break;
      case ActivationForm::bf16:
        EXPECT_LE(error, 0.002) << traits(dtype).name;
        EXPECT_GE(error, 0.0005) << traits(dtype).name;
        break;
      case ActivationForm::q8_64:
      case ActivationForm::q8_128:
      case ActivationForm::q8_256:
        EXPECT_LE(error, 0.0075) << traits(dtype).name;
        EXPECT_GE(error, 0.005) << traits(dtype).name;
        break;
    }
  }
}

TEST(ScalarMatmul, RoundsTheOthersLittleMoreForTheOutliersBesideThem) {
  // The error is that of the values which are not outliers, and so it is measured against their share of the product.
  for (DType dtype : weight_types()) {
    if (scalar_kernels().form[size_t(dtype)] == ActivationForm::bf16)
      continue;  // each value has its own steps
    Case test(dtype, 64, ugly_width(dtype, 8), 16);
    const double usual = relative_rms(test.product(scalar_kernels()), test.true_product());
    double others = 0.0;
    for (double value : test.true_product()) others += value * value;
    test.add_outliers();
    const std::vector<double> expected = test.true_product();
    double all = 0.0;
    for (double value : expected) all += value * value;
    const double error = relative_rms(test.product(scalar_kernels()), expected) * std::sqrt(all / others);
    EXPECT_LE(error, 4 * usual + 2e-5) << traits(dtype).name;  // with one scale for all it would be 13 times
  }
}

TEST(ScalarMatmul, IsTheExactProductOfTheRoundedActivations) {
  // Activations that int8 holds exactly: multiples of a power of two with the peak at 127. What is left is the
  // rounding of sums that carry kMagic along: a small share of what int8 costs.
  std::mt19937 random(5);
  for (DType dtype : weight_types()) {
    Case test(dtype, 9, ugly_width(dtype, 3), 6);
    for (float& value : test.input) value = 0.25f * float(int(random() % 255) - 127);
    for (size_t i = 0; i < test.input.size(); i += 32) test.input[i] = 0.25f * 127.0f;
    EXPECT_LE(relative_rms(test.product(scalar_kernels()), test.true_product()), 1e-4) << traits(dtype).name;
  }
}

// Matrix instructions of bf16 add products as they like. All others follow their twin in plain code to the bit.
bool adds_in_its_own_order(const CpuKernels& kernels, DType dtype) {
  return dtype == DType::bf16 && kernels.panels[size_t(dtype)].pack != nullptr;
}

void expect_nearly(const std::vector<float>& out, const std::vector<float>& expected, const Case& test) {
  const std::vector<double> magnitudes = test.magnitudes();
  for (size_t i = 0; i < out.size(); ++i) ASSERT_NEAR(out[i], expected[i], 2e-6 * magnitudes[i]) << i;
}

void expect_the_twins_product(const Case& test) {
  for (const CpuKernels& kernels : present_kernels()) {
    const std::vector<float> expected = test.product(kernels.twin());
    SCOPED_TRACE(std::string(kernels.name) + " " + std::string(traits(test.dtype).name) + " " +
                 std::to_string(test.rows) + " x " + std::to_string(test.cols) + ", " +
                 std::to_string(test.tokens) + " tokens");
    if (adds_in_its_own_order(kernels, test.dtype)) {
      ASSERT_NO_FATAL_FAILURE(expect_nearly(test.product(kernels), expected, test));
    } else {
      ASSERT_EQ(test.product(kernels), expected);
    }
  }
}

TEST(Matmul, OfEveryInstructionSetIsThatOfItsTwin) {
  for (DType dtype : weight_types()) {
    for (size_t tokens : {1u, 2u, 3u, 6u, 13u, 35u}) {
      for (size_t blocks : {1u, 3u, 9u}) {
        ASSERT_NO_FATAL_FAILURE(expect_the_twins_product(Case(dtype, 37, ugly_width(dtype, blocks), tokens)));
      }
    }
  }
}

TEST(Matmul, WithOutliersIsThatOfItsTwinWhateverStandsBesideThem) {
  for (DType dtype : weight_types()) {
    for (size_t tokens : {1u, 2u, 5u, 35u, 300u}) {  // few columns with outliers, and most of them
      const Case test = Case(dtype, tokens < 300 ? 37 : 19, ugly_width(dtype, 9), tokens).add_outliers();
      ASSERT_NO_FATAL_FAILURE(expect_the_twins_product(test));
      for (const CpuKernels& kernels : present_kernels())
        ASSERT_EQ(test.product(kernels, 3, 11), test.product(kernels))
            << kernels.name << " " << traits(dtype).name;
    }
  }
}

TEST(Matmul, OfMoreThanIsWorkedOnAtATimeIsThatOfItsTwin) {
  // Without and with minimums, and with sub-blocks of 16 values, whole numbers or floats.
  ASSERT_NO_FATAL_FAILURE(expect_the_twins_product(Case(DType::q4_0, 141, 2048 + 96, 187)));
  ASSERT_NO_FATAL_FAILURE(expect_the_twins_product(Case(DType::q4_1, 141, 2048 + 96, 187)));
  ASSERT_NO_FATAL_FAILURE(expect_the_twins_product(Case(DType::q2_k, 141, 2048 + 256, 187)));
  ASSERT_NO_FATAL_FAILURE(expect_the_twins_product(Case(DType::nvfp4, 141, 2048 + 64, 187).add_outliers()));
  ASSERT_NO_FATAL_FAILURE(expect_the_twins_product(Case(DType::q4_1, 37, 2048 + 96, 251).add_outliers()));
  // Few tokens and many columns, more tokens than any set takes at a time, more rows.
  for (DType dtype : {DType::q4_0, DType::q8_0}) {
    ASSERT_NO_FATAL_FAILURE(expect_the_twins_product(Case(dtype, 37, 2048 + 96, 13).add_outliers()));
    ASSERT_NO_FATAL_FAILURE(expect_the_twins_product(Case(dtype, 19, 96, 530).add_outliers()));
    ASSERT_NO_FATAL_FAILURE(expect_the_twins_product(Case(dtype, 560, 64, 5)));
  }
}

TEST(Matmul, OfWeightsThatAreNotQuantizedIsThatOfItsTwinInEveryShape) {
  for (DType dtype : {DType::f32, DType::f16, DType::bf16}) {
    for (size_t tokens = 1; tokens <= 14; ++tokens) {
      for (size_t rows : {1u, 2u, 3u, 19u}) {
        for (size_t cols : {1u, 15u, 16u, 33u, 160u}) {
          ASSERT_NO_FATAL_FAILURE(expect_the_twins_product(Case(dtype, rows, cols, tokens)));
        }
      }
    }
    for (size_t tokens : {1u, 4u, 203u}) {
      ASSERT_NO_FATAL_FAILURE(expect_the_twins_product(Case(dtype, 75, 2048 + 48 + 7, tokens)));
    }
  }
}

TEST(Matmul, OfEveryInstructionSetTakesAnyCodesAndTheLargestActivations) {
  std::mt19937 random(9);
  for (const CpuKernels& kernels : present_kernels()) {
    for (DType dtype : weight_types()) {
      if (adds_in_its_own_order(kernels, dtype))
        continue;  // sums of any numbers overflow in some orders only
      for (size_t tokens : {1u, 2u, 9u}) {
        Case test(dtype, 37, ugly_width(dtype, 5), tokens);
        for (std::byte& byte : test.weight) byte = std::byte(random());
        // 127 or -127 each; the first token's are all of one sign.
        for (size_t i = 0; i < test.input.size(); ++i) {
          test.input[i] = i < test.cols || random() % 2 == 0 ? 1.0f : -1.0f;
        }
        const std::vector<float> expected = test.product(kernels.twin()), out = test.product(kernels);
        for (size_t i = 0; i < out.size(); ++i) {
          if (std::isnan(expected[i]) && std::isnan(out[i])) continue;  // random scales may be NaN
          ASSERT_EQ(std::bit_cast<uint32_t>(out[i]), std::bit_cast<uint32_t>(expected[i]))
              << kernels.name << " " << traits(dtype).name << " " << tokens << " " << i;
        }
      }
    }
  }
}

TEST(Matmul, OfEveryInstructionSetTakesHundredsOfTokens) {
  for (const CpuKernels& kernels : present_kernels()) {
    const Case test(DType::q6_k, 17, 256, 251);
    EXPECT_EQ(test.product(kernels), test.product(kernels.twin())) << kernels.name;
  }
}

TEST(Matmul, IsBitEqualForAnyNumberOfTokensAndAnySplitOfRows) {
  for (const CpuKernels& kernels : all_kernels()) {
    for (DType dtype : weight_types()) {
      const Case test(dtype, 37, ugly_width(dtype, 2), 67);
      const std::vector<float> whole = test.product(kernels);
      for (size_t call_tokens : {1u, 2u, 3u, 4u, 5u, 20u, 64u}) {
        for (size_t call_rows : {1u, 5u, 37u}) {
          ASSERT_EQ(test.product(kernels, call_tokens, call_rows), whole)
              << kernels.name << " " << traits(dtype).name << " " << call_tokens << " " << call_rows;
        }
      }
    }
  }
}

TEST(Matmul, OfBf16IsBitEqualForAnyNumberOfTokensBeyondWhatIsWorkedOnAtATime) {
  for (const CpuKernels& kernels : present_kernels()) {
    const Case test(DType::bf16, 35, 2048 + 71, 261);
    const std::vector<float> whole = test.product(kernels);
    for (size_t call_tokens : {1u, 7u, 16u, 17u, 33u, 70u}) {
      ASSERT_EQ(test.product(kernels, call_tokens, 35), whole) << kernels.name << " " << call_tokens;
    }
    ASSERT_EQ(test.product(kernels, 261, 20), whole) << kernels.name;
  }
}

TEST(Matmul, WorksOnTheSmallestShapes) {
  for (const CpuKernels& kernels : all_kernels()) {
    for (DType dtype : weight_types()) {
      const Case test(dtype, 1, traits(dtype).block_values, 1);
      const double expected = test.true_product()[0];
      double scale = 0.0;
      for (float value : test.input) scale += double(value) * double(value);
      EXPECT_NEAR(test.product(kernels)[0], expected, 0.03 * std::sqrt(scale)) << traits(dtype).name;
    }
  }
}

TEST(Matmul, WritesOnlyTheRowsAskedFor) {
  for (const CpuKernels& kernels : all_kernels()) {
    const Case test(DType::q4_0, 8, 64, 2);
    const Buffer input = test.input_rows(kernels), panels = test.packed(kernels);
    std::vector<float> out(2 * 10, -7.0f);  // rows of ten: two beyond the matrix
    kernels.matmul[size_t(DType::q4_0)]({.weight = test.matrix(),
                                         .panels = panels.data(),
                                         .input = input.data(),
                                         .input_stride_bytes = input.size() / 2,
                                         .tokens = 2,
                                         .row_begin = 3,
                                         .row_end = 6,
                                         .out = out.data(),
                                         .out_stride = 10});
    for (size_t i = 0; i < out.size(); ++i) EXPECT_EQ(out[i] != -7.0f, i % 10 >= 3 && i % 10 < 6) << i;
  }
}

TEST(Matmul, ShowsActivationsThatAreNotFinite) {
  for (float bad : {float(NAN), float(INFINITY), -float(INFINITY)}) {
    for (const CpuKernels& kernels : all_kernels()) {
      for (DType dtype : weight_types()) {
        Case test(dtype, 2, 2 * 256, 2);
        test.input[300] = bad;
        const std::vector<float> out = test.product(kernels);
        EXPECT_FALSE(std::isfinite(out[0])) << traits(dtype).name;
        EXPECT_TRUE(std::isfinite(out[2])) << traits(dtype).name;  // the other token's
      }
    }
  }
}

}  // namespace
}  // namespace quire
