// Products of types in blocks of 256 on AVX-512 and tiles in plain code, compared with the twin. AMX itself is compared with the twin
// wherever it is present, like every kernel set.
#if defined(__x86_64__)

#include "backend/cpu/amx/folded_matmul.h"

#include <bit>
#include <cmath>

#include <gtest/gtest.h>

#include "backend/cpu/amx/plain_folded_kernels.h"
#include "backend/cpu/cpu_backend.h"
#include "backend/cpu/kernel_choice.h"
#include "backend/cpu/matmul/matmul_case.h"

namespace quire {
namespace {

constexpr DType kTypes[] = {DType::q2_k, DType::q3_k, DType::q4_k, DType::q5_k, DType::q6_k, DType::iq4_xs};

class FoldedMatmul : public testing::Test {
 protected:
  void SetUp() override {
    for (const CpuKernels& present : present_kernels()) {
      if (std::string(present.name) == "avx512") kernels = present;
    }
    if (kernels.name == nullptr) GTEST_SKIP() << "this CPU has no AVX-512 with VNNI";
    use_plain_folded(kernels);
  }
  void TearDown() override { EXPECT_FALSE(plain_folded_tiles_are_configured()); }

  void expect_the_twins_product(const MatmulCase& test) const {
    ASSERT_EQ(test.product(kernels), test.product(scalar_kernels()))
        << traits(test.dtype).name << " " << test.rows << " x " << test.cols << ", " << test.tokens
        << " tokens";
  }

  CpuKernels kernels = {};
};

TEST_F(FoldedMatmul, IsThatOfItsTwinForAnyWidth) {
  for (DType dtype : kTypes) {
    for (size_t blocks : {1u, 2u, 3u, 4u, 5u, 11u}) {
      for (size_t tokens : {9u, 21u, 40u})
        ASSERT_NO_FATAL_FAILURE(expect_the_twins_product(MatmulCase(dtype, 53, blocks * 256, tokens)));
    }
  }
}

TEST_F(FoldedMatmul, IsThatOfItsTwinForAnyNumberOfTokens) {
  for (DType dtype : kTypes) {
    for (size_t tokens = kFoldedLeastTokens; tokens <= 50; ++tokens)
      ASSERT_NO_FATAL_FAILURE(expect_the_twins_product(MatmulCase(dtype, 33, 256, tokens)));
  }
}

TEST_F(FoldedMatmul, IsThatOfItsTwinForAnyNumberOfPanels) {
  for (size_t rows = 1; rows <= 100; rows += 16) {
    for (size_t tokens : {16u, 32u, 33u}) {
      ASSERT_NO_FATAL_FAILURE(expect_the_twins_product(MatmulCase(DType::q4_k, rows, 768, tokens)));
      ASSERT_NO_FATAL_FAILURE(expect_the_twins_product(MatmulCase(DType::q6_k, rows, 512, tokens)));
    }
  }
}

TEST_F(FoldedMatmul, IsThatOfItsTwinWhenTokensDoNotShareAnOpening) {
  ASSERT_NO_FATAL_FAILURE(expect_the_twins_product(MatmulCase(DType::q2_k, 17, 512, 257)));
  ASSERT_NO_FATAL_FAILURE(expect_the_twins_product(MatmulCase(DType::q4_k, 50, 512, 531)));
  ASSERT_NO_FATAL_FAILURE(expect_the_twins_product(MatmulCase(DType::q3_k, 5, 8192 * 2, 100)));
  // Shares of 32 tokens: the last has one.
  ASSERT_NO_FATAL_FAILURE(expect_the_twins_product(MatmulCase(DType::q2_k, 5, 8192 * 4, 65).add_outliers()));
}

TEST_F(FoldedMatmul, WithOutliersIsThatOfItsTwin) {
  for (DType dtype : kTypes) {
    for (size_t tokens : {8u, 19u, 80u})
      ASSERT_NO_FATAL_FAILURE(
          expect_the_twins_product(MatmulCase(dtype, 37, 5 * 256, tokens).add_outliers()));
  }
}

TEST_F(FoldedMatmul, TakesAnyCodesAndTheLargestActivations) {
  std::mt19937 random(9);
  for (DType dtype : kTypes) {
    for (size_t tokens : {19u, 40u}) {
      MatmulCase test(dtype, 37, 5 * 256, tokens);
      for (std::byte& byte : test.weight) byte = std::byte(random());
      // 127 or -127 each; the first token's are all of one sign.
      for (size_t i = 0; i < test.input.size(); ++i)
        test.input[i] = i < test.cols || random() % 2 == 0 ? 1.0f : -1.0f;
      const std::vector<float> expected = test.product(scalar_kernels()), out = test.product(kernels);
      for (size_t i = 0; i < out.size(); ++i) {
        if (std::isnan(expected[i]) && std::isnan(out[i])) continue;  // random scales may be NaN
        ASSERT_EQ(std::bit_cast<uint32_t>(out[i]), std::bit_cast<uint32_t>(expected[i]))
            << traits(dtype).name << " " << i;
      }
    }
  }
}

TEST_F(FoldedMatmul, TakesTheLargestCodesAndScales) {
  // All bits set: the largest code of each type, but where codes are moved down, and the largest scale or -1; no bit set: the smallest.
  // Scales of the blocks are ones, or products would be infinite.
  const auto set_scale = [](std::byte* bytes) {
    const uint16_t one = 0x3c00;
    std::memcpy(bytes, &one, sizeof(one));
  };
  for (DType dtype : {DType::q4_k, DType::q5_k, DType::q6_k}) {
    for (uint8_t bits : {0xff, 0x80, 0x7f, 0x00}) {
      MatmulCase test(dtype, 20, 2 * 256, 18);
      const size_t block_bytes = row_bytes(dtype, 256);
      std::fill(test.weight.begin(), test.weight.end(), std::byte(bits));
      for (size_t r = 0; r < test.rows; ++r) {
        for (size_t b = 0; b < 2; ++b) {
          std::byte* block = test.matrix().data_at(r) + b * block_bytes;
          set_scale(dtype == DType::q6_k ? block + 208 : block);
          if (dtype != DType::q6_k) set_scale(block + 2);
        }
      }
      for (size_t i = 0; i < test.input.size(); ++i) test.input[i] = i / test.cols % 2 == 0 ? 1.0f : -1.0f;
      ASSERT_NO_FATAL_FAILURE(expect_the_twins_product(test));
    }
  }
}

TEST_F(FoldedMatmul, IsTheSameForAnySplitOfRowsAndTokens) {
  for (DType dtype : {DType::q4_k, DType::q6_k}) {
    const MatmulCase test(dtype, 75, 512, 40);
    const std::vector<float> whole = test.product(scalar_kernels());
    for (size_t call_tokens : {1u, 9u, 16u, 33u, 40u}) {
      for (size_t call_rows : {1u, 5u, 16u, 32u, 48u})
        ASSERT_EQ(test.product(kernels, call_tokens, call_rows), whole) << call_tokens << " " << call_rows;
    }
  }
}

TEST_F(FoldedMatmul, TakesInputsThatWerePackedForAllRowsAtOnce) {
  for (size_t tokens : {8u, 16u, 31u, 300u}) {
    const MatmulCase test = MatmulCase(DType::q4_k, 40, 768, tokens).add_outliers();
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
                     .col_end = c + 256,
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
    ASSERT_EQ(out, test.product(scalar_kernels())) << tokens;
  }
}

// Three matrices of one input, of two types: they share packed tiles.
TEST_F(FoldedMatmul, OfTheBackendIsThatOfItsTwinForAnyNumberOfTokens) {
  CpuBackend backend(kernels, 3);
  for (size_t tokens : {1u, 7u, 8u, 33u, 200u}) {
    std::vector<MatmulCase> cases = {
        {DType::q4_k, 70, 768, tokens}, {DType::q4_k, 33, 768, tokens}, {DType::q6_k, 50, 768, tokens}};
    cases[0].add_outliers();
    for (MatmulCase& test : cases) test.input = cases[0].input;
    const Buffer rows = cases[0].input_rows(kernels);
    const ActivationForm form = kernels.form[size_t(DType::q4_k)];
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
      ASSERT_EQ(outs[i], cases[i].product(scalar_kernels())) << tokens << " " << i;
  }
}

}  // namespace
}  // namespace quire

#endif
