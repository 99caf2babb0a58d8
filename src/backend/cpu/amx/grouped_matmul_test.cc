// Products with grouped weights on AVX-512 and tiles in plain code, compared with the twin. AMX itself is compared with the twin
// wherever it is present, like every kernel set.
#if defined(__x86_64__)

#include <bit>
#include <cmath>

#include <gtest/gtest.h>

#include "backend/cpu/amx/plain_grouped_kernels.h"
#include "backend/cpu/cpu_backend.h"
#include "backend/cpu/kernel_choice.h"
#include "backend/cpu/matmul/matmul_case.h"

namespace quire {
namespace {

std::vector<DType> grouped_types() {
  std::vector<DType> types;
#define QUIRE_FORMAT(dtype, Format, activation) types.push_back(DType::dtype);
#include "backend/cpu/matmul/grouped_formats.inc"
#undef QUIRE_FORMAT
  return types;
}

class GroupedMatmul : public testing::Test {
 protected:
  void SetUp() override {
    for (const CpuKernels& present : present_kernels()) {
      if (std::string(present.name) == "avx512") kernels = present;
    }
    if (kernels.name == nullptr) GTEST_SKIP() << "this CPU has no AVX-512 with VNNI";
    use_plain_grouped(kernels);
  }
  void TearDown() override { EXPECT_FALSE(plain_grouped_tiles_are_configured()); }

  void expect_the_twins_product(const MatmulCase& test) const {
    ASSERT_EQ(test.product(kernels), test.product(grouped_kernels()))
        << traits(test.dtype).name << " " << test.rows << " x " << test.cols << ", " << test.tokens
        << " tokens";
  }

  CpuKernels kernels = {};
};

TEST_F(GroupedMatmul, IsThatOfItsTwinForAnyWidth) {
  for (DType dtype : grouped_types()) {
    for (size_t blocks : {1u, 2u, 3u, 4u, 5u, 9u, 17u, 18u}) {
      for (size_t tokens : {1u, 7u, 21u, 40u}) {
        const size_t cols = blocks * traits(dtype).block_values;
        ASSERT_NO_FATAL_FAILURE(expect_the_twins_product(MatmulCase(dtype, 53, cols, tokens)));
      }
    }
  }
}

TEST_F(GroupedMatmul, IsThatOfItsTwinForAnyNumberOfTokens) {
  for (DType dtype : {DType::q4_0, DType::q4_1, DType::q8_0}) {
    for (size_t tokens = 1; tokens <= 70; ++tokens)
      ASSERT_NO_FATAL_FAILURE(expect_the_twins_product(MatmulCase(dtype, 65, 288, tokens)));
  }
}

TEST_F(GroupedMatmul, IsThatOfItsTwinWhenTokensDoNotShareAnOpening) {
  ASSERT_NO_FATAL_FAILURE(expect_the_twins_product(MatmulCase(DType::q5_1, 17, 320, 257)));
  ASSERT_NO_FATAL_FAILURE(expect_the_twins_product(MatmulCase(DType::q4_1, 50, 1280, 531)));
}

TEST_F(GroupedMatmul, WithOutliersIsThatOfItsTwin) {
  for (DType dtype : grouped_types()) {
    for (size_t tokens : {1u, 19u, 80u}) {
      const size_t cols = (traits(dtype).block_values == 32 ? 35 : 5) * traits(dtype).block_values;
      ASSERT_NO_FATAL_FAILURE(expect_the_twins_product(MatmulCase(dtype, 37, cols, tokens).add_outliers()));
    }
  }
}

TEST_F(GroupedMatmul, TakesAnyCodesAndTheLargestActivations) {
  std::mt19937 random(9);
  for (DType dtype : grouped_types()) {
    for (size_t tokens : {1u, 19u, 40u}) {
      MatmulCase test(dtype, 37, 5 * traits(dtype).block_values, tokens);
      for (std::byte& byte : test.weight) byte = std::byte(random());
      // 127 or -127 each; the first token's are all of one sign.
      for (size_t i = 0; i < test.input.size(); ++i)
        test.input[i] = i < test.cols || random() % 2 == 0 ? 1.0f : -1.0f;
      const std::vector<float> expected = test.product(grouped_kernels()), out = test.product(kernels);
      for (size_t i = 0; i < out.size(); ++i) {
        if (std::isnan(expected[i]) && std::isnan(out[i])) continue;  // random scales may be NaN
        ASSERT_EQ(std::bit_cast<uint32_t>(out[i]), std::bit_cast<uint32_t>(expected[i]))
            << traits(dtype).name << " " << i;
      }
    }
  }
}

TEST_F(GroupedMatmul, IsTheSameForAnySplitOfRowsAndTokens) {
  for (DType dtype : {DType::q8_0, DType::q4_0, DType::q4_1}) {
    const MatmulCase test(dtype, 75, 512, 40);
    const std::vector<float> whole = test.product(grouped_kernels());
    for (size_t call_tokens : {1u, 2u, 16u, 33u, 40u}) {
      for (size_t call_rows : {1u, 5u, 16u, 32u, 48u})
        ASSERT_EQ(test.product(kernels, call_tokens, call_rows), whole) << call_tokens << " " << call_rows;
    }
  }
}

TEST_F(GroupedMatmul, TakesInputsThatWerePackedForAllRowsAtOnce) {
  for (size_t tokens : {2u, 16u, 31u, 300u}) {
    const MatmulCase test = MatmulCase(DType::q4_0, 40, 544, tokens).add_outliers();
    const InputFormat& format = kernels.inputs[size_t(test.dtype)];
    const size_t stride = activation_row_bytes(kernels.form[size_t(test.dtype)], test.cols);
    const size_t tile_bytes = format.tile_bytes(test.cols);
    const Buffer rows = test.input_rows(kernels), panels = test.packed(kernels);
    const Buffer tiles((tokens + kInputTileTokens - 1) / kInputTileTokens * tile_bytes);
    for (size_t t = 0; t < tokens; t += kInputTileTokens) {
      for (size_t c = 0; c < test.cols; c += 256) {
        format.pack({.rows = rows.data() + t * stride,
                     .stride_bytes = stride,
                     .tokens = std::min(kInputTileTokens, tokens - t),
                     .cols = test.cols,
                     .col_begin = c,
                     .col_end = std::min(c + 256, test.cols),
                     .tile = tiles.data() + t / kInputTileTokens * tile_bytes});
      }
    }
    std::vector<float> out(tokens * test.rows, NAN);
    kernels.matmul[size_t(test.dtype)]({.weight = test.matrix(),
                                        .panels = panels.data(),
                                        .input = rows.data(),
                                        .input_stride_bytes = stride,
                                        .input_tiles = tiles.data(),
                                        .tokens = tokens,
                                        .row_begin = 0,
                                        .row_end = test.rows,
                                        .out = out.data(),
                                        .out_stride = test.rows});
    ASSERT_EQ(out, test.product(grouped_kernels())) << tokens;
  }
}

// Three matrices of one input, one of another type: they share packed tiles.
TEST_F(GroupedMatmul, OfTheBackendIsThatOfItsTwinForAnyNumberOfTokens) {
  CpuBackend backend(kernels, 3);
  for (size_t tokens : {1u, 5u, 33u, 200u}) {
    std::vector<MatmulCase> cases = {
        {DType::q4_0, 70, 768, tokens}, {DType::q4_0, 33, 768, tokens}, {DType::q5_0, 50, 768, tokens}};
    for (MatmulCase& test : cases) {
      test.input = cases[0].input;
      test.add_outliers();
    }
    for (MatmulCase& test : cases) test.input = cases[0].input;
    const Buffer rows = cases[0].input_rows(kernels);
    const ActivationForm form = kernels.form[size_t(DType::q4_0)];
    Activation in;
    in.f32 = {cases[0].input.data(), tokens, 768, 768};
    in.forms |= form;
    in.data[size_t(form)] = rows.data();
    in.stride[size_t(form)] = activation_row_bytes(form, 768);
    std::vector<std::vector<float>> outs;
    for (const MatmulCase& test : cases) outs.emplace_back(tokens * test.rows, NAN);
    std::vector<Projection> projections;
    for (size_t i = 0; i < cases.size(); ++i) {
      Weight weight;
      weight.view = cases[i].matrix();
      projections.push_back({.weight = backend.prepare(weight, {WeightUse::product}),
                             .bias = {},
                             .out = {outs[i].data(), tokens, cases[i].rows, cases[i].rows}});
    }
    backend.project({.in = in, .projections = projections});
    for (size_t i = 0; i < cases.size(); ++i)
      ASSERT_EQ(outs[i], cases[i].product(grouped_kernels())) << tokens << " " << i;
  }
}

}  // namespace
}  // namespace quire

#endif
