#include "backend/cuda/attention_rule.h"

#include <cmath>
#include <numeric>
#include <random>
#include <vector>

#include <gtest/gtest.h>

#include "backend/cpu/vector_math.h"
#include "backend/cuda/attention_plain.h"
#include "backend/cuda/mma_twin.h"
#include "tensor/float16.h"

namespace quire::cuda {
namespace {

constexpr uint32_t kDim = 64, kPageTokens = 16;

// One KV head's rows in pages of its own, and a query.
struct Sequence {
  HalfKind numbers;
  KvLayout layout;
  std::vector<std::byte> pages;
  std::vector<uint32_t> page_ids;
  std::vector<uint16_t> query;

  Sequence(HalfKind kind, uint32_t length, float query_size) : numbers(kind) {
    const KvFormat format = kind == HalfKind::bf16 ? KvFormat::bf16 : KvFormat::f16;
    const KvLayerShape shape{.kv_heads = 1,
                             .key_dim = kDim,
                             .value_dim = kDim,
                             .window = 0,
                             .key_format = format,
                             .value_format = format};
    layout = make_kv_layout(std::vector(1, shape), kPageTokens);
    page_ids.resize((length + kPageTokens - 1) / kPageTokens);
    std::iota(page_ids.begin(), page_ids.end(), 0u);
    pages.resize(page_ids.size() * layout.groups[0].page_bytes);
    std::mt19937 random(3);
    std::normal_distribution<float> normal;
    for (size_t i = 0; i < pages.size(); i += 2) {
      const uint16_t bits = half(normal(random));
      std::memcpy(pages.data() + i, &bits, sizeof(bits));
    }
    for (uint32_t d = 0; d < kDim; ++d) query.push_back(half(normal(random) * query_size));
  }

  uint16_t half(float value) const {
    return numbers == HalfKind::bf16 ? f32_to_bf16(value) : f32_to_f16(value);
  }
  float number(uint16_t bits) const {
    return numbers == HalfKind::bf16 ? bf16_to_f32(bits) : f16_to_f32(bits);
  }
  PagedRows rows() const {
    return paged_rows(layout.groups[0], 0, const_cast<std::byte*>(pages.data()), uint32_t(page_ids.size()));
  }

  std::vector<float> attend(uint32_t row, uint32_t window, float soft_cap, const float* sink) const {
    std::vector<float> out(kDim);
    PlainScratch scratch;
    const PlainAttention attention = {.query = query.data(),
                                      .rows = rows(),
                                      .page_ids = page_ids.data(),
                                      .kv_head = 0,
                                      .row = row,
                                      .window = window,
                                      .scale = score_scale(1.0f / 8, soft_cap),
                                      .sink = sink,
                                      .out = out.data()};
    if (numbers == HalfKind::bf16) {
      PlainRule<HalfKind::bf16>{attention}.attend(OneThread(), scratch);
    } else {
      PlainRule<HalfKind::f16>{attention}.attend(OneThread(), scratch);
    }
    return out;
  }

  std::vector<double> exact(uint32_t row, uint32_t window, float soft_cap, const float* sink) const {
    std::vector<double> out(kDim);
    double sum = sink == nullptr ? 0 : std::exp(double(*sink));
    for (uint32_t key = first_visible(row, window); key <= row; ++key) {
      const uint32_t page = page_ids[key / kPageTokens], at = key % kPageTokens;
      const auto* keys = reinterpret_cast<const uint16_t*>(rows().key_row(page, 0, at));
      const auto* values = reinterpret_cast<const uint16_t*>(rows().value_row(page, 0, at));
      double score = 0;
      for (uint32_t d = 0; d < kDim; ++d) score += double(number(query[d])) * double(number(keys[d]));
      score /= 8;
      if (soft_cap > 0) score = double(soft_cap) * std::tanh(score / double(soft_cap));
      const double p = std::exp(score);
      sum += p;
      for (uint32_t d = 0; d < kDim; ++d) out[d] += p * double(number(values[d]));
    }
    for (double& value : out) value /= sum;
    return out;
  }
};

TEST(AttentionRule, IsSoftmaxWithinTheRoundingOfShares) {
  const float sink = 1.5f;
  for (const HalfKind kind : {HalfKind::bf16, HalfKind::f16}) {
    const Sequence sequence(kind, 1200, 6);
    for (const uint32_t row : {0u, 1u, 127u, 128u, 511u, 512u, 700u, 1199u}) {
      for (const uint32_t window : {0u, 1u, 130u}) {
        for (const float soft_cap : {0.0f, 10.0f}) {
          for (const float* its_sink : {static_cast<const float*>(nullptr), &sink}) {
            const std::vector<float> out = sequence.attend(row, window, soft_cap, its_sink);
            const std::vector<double> exact = sequence.exact(row, window, soft_cap, its_sink);
            double error = 0, size = 0;
            for (uint32_t d = 0; d < kDim; ++d) {
              error += (double(out[d]) - exact[d]) * (double(out[d]) - exact[d]);
              size += exact[d] * exact[d];
            }
            EXPECT_LT(std::sqrt(error / size), kind == HalfKind::bf16 ? 4e-3 : 5e-4)
                << "row " << row << " window " << window << " cap " << soft_cap;
          }
        }
      }
    }
  }
}

TEST(AttentionRule, RaisesTheReferenceOnlyByMoreThanItsStep) {
  float reference = 3.0f;
  EXPECT_EQ(raise_reference(11.0f, 1.0f, reference), 1.0f);
  EXPECT_EQ(reference, 3.0f);
  EXPECT_LT(raise_reference(12.0f, 1.0f, reference), 1.0f / 256);
  EXPECT_EQ(reference, 12.0f);
  reference = -infinity();
  EXPECT_EQ(raise_reference(-infinity(), 1.0f, reference), 1.0f);
  EXPECT_EQ(offset_of(reference), 0.0f);
  EXPECT_EQ(raise_reference(-5.0f, 2.0f, reference), 0.0f);
  EXPECT_EQ(reference, -10.0f);
}

TEST(AttentionRule, LetsSplitsWithoutAKeyDropOut) {
  float total = -infinity();
  const MergeWeights nothing = merge_weights(-infinity(), total);
  EXPECT_EQ(merged(0.0f, 0.0f, nothing), 0.0f);
  const MergeWeights first = merge_weights(-4.0f, total);
  EXPECT_EQ(merged(0.0f, 2.5f, first), 2.5f);
  const MergeWeights none = merge_weights(-infinity(), total);
  EXPECT_EQ(merged(2.5f, 0.0f, none), 2.5f);
  EXPECT_EQ(total, -4.0f);
}

TEST(TensorCoreStep, IsTheTwinOfTheProducts) {
  std::mt19937 random(11);
  std::normal_distribution<float> normal;
  for (int i = 0; i < 2000; ++i) {
    uint16_t a[16], b[16];
    for (int k = 0; k < 16; ++k) {
      a[k] = f32_to_bf16(std::ldexp(normal(random), int(random() % 20) - 10));
      b[k] = f32_to_bf16(normal(random));
    }
    const float c = normal(random);
    ASSERT_EQ(tensor_core_step<HalfKind::bf16>(a, b, c), mma_step(a, b, c, kHopperRule));
  }
}

TEST(TensorCoreStep, AddsHalvesAlmostExactly) {
  std::mt19937 random(12);
  std::normal_distribution<float> normal;
  for (int i = 0; i < 2000; ++i) {
    uint16_t a[16], b[16];
    const float c = normal(random);
    double sum = double(c), size = std::abs(double(c));
    for (int k = 0; k < 16; ++k) {
      a[k] = f32_to_f16(normal(random) * 1e-3f);
      b[k] = f32_to_f16(normal(random));
      const double product = double(f16_to_f32(a[k])) * double(f16_to_f32(b[k]));
      sum += product;
      size += std::abs(product);
    }
    ASSERT_NEAR(double(tensor_core_step<HalfKind::f16>(a, b, c)), sum, size * 0x1p-21);
  }
}

TEST(DeviceMath, HasTheCpusExponential) {
  for (float x = -90; x < 90; x += 0.00173f) {
#if defined(__aarch64__)
    const float ours = exp_of(x), theirs = exp4(all4(x))[0];
    if (ours != theirs) {
      ASSERT_NEAR(ours, theirs, std::abs(ours) * 1e-6f) << x;
    }
#else
    ASSERT_EQ(exp_of(x), exp4(all4(x))[0]) << x;
#endif
  }
  EXPECT_EQ(exp_of(-infinity()), 0.0f);
  EXPECT_EQ(exp_of(infinity()), infinity());
  EXPECT_TRUE(std::isnan(exp_of(std::nanf(""))));
}

TEST(DeviceMath, HasPowersOfTwoToTheLastPlace) {
  for (float x = -126; x < 20; x += 0.000917f) {
    const double exact = std::exp2(double(x));
    ASSERT_NEAR(exp2_polynomial(x), exact, exact * 2.1e-7) << x;
  }
  EXPECT_EQ(exp2_polynomial(-infinity()), 0.0f);
  EXPECT_EQ(exp2_polynomial(0.0f), 1.0f);
}

}  // namespace
}  // namespace quire::cuda
