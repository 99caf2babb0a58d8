#include "backend/cuda/attention/attention_rule.h"

#include <cmath>
#include <numeric>
#include <random>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "backend/cpu/attention/kv_rows.h"
#include "backend/cpu/vector_math.h"
#include "backend/cuda/attention/attention_plain.h"
#include "backend/cuda/matmul/mma_twin.h"
#include "tensor/float16.h"

namespace quire::cuda {
namespace {

constexpr uint32_t kDim = 64, kPageTokens = 16;

enum class Keys { own, that_go_on };  // in their values

// One KV head's rows in pages of its own, and a query.
struct Sequence {
  KvFormat key_format, value_format;
  Keys kind;
  KvLayout layout;
  std::vector<std::byte> pages;
  std::vector<uint32_t> page_ids;
  std::vector<uint16_t> query;

  Sequence(KvFormat keys, KvFormat values, uint32_t length, float query_size, Keys which = Keys::own)
      : key_format(keys), value_format(values), kind(which) {
    const KvLayerShape shape{.kv_heads = 1,
                             .key_dim = kDim,
                             .value_dim = kDim,
                             .window = 0,
                             .key_format = keys,
                             .value_format = values,
                             .key_goes_on = which == Keys::that_go_on};
    layout = make_kv_layout(std::vector(1, shape), kPageTokens);
    page_ids.resize((length + kPageTokens - 1) / kPageTokens);
    std::iota(page_ids.begin(), page_ids.end(), 0u);
    pages.resize(page_ids.size() * layout.groups[0].page_bytes);
    std::mt19937 random(3);
    std::normal_distribution<float> normal;
    std::vector<float> row(kDim);
    const auto noise = [&](float size) {
      for (float& number : row) number = normal(random) * size;
    };
    for (uint32_t key = 0; key < page_ids.size() * kPageTokens; ++key) {
      noise(1);
      store_kv_row(keys, row, rows().key_row(key / kPageTokens, 0, key % kPageTokens));
      noise(1);
      store_kv_row(values, row, rows().value_row(key / kPageTokens, 0, key % kPageTokens));
    }
    for (const KvFormat format : {keys, values}) {
      if (query.size() == kDim && kind == Keys::own) break;
      noise(query_size);
      for (const float number : row)
        query.push_back(numbers_of(format) == HalfKind::bf16 ? f32_to_bf16(number) : f32_to_f16(number));
    }
  }

  float query_number(uint32_t d) const {
    const KvFormat format = d < kDim ? key_format : value_format;
    return numbers_of(format) == HalfKind::bf16 ? bf16_to_f32(query[d]) : f16_to_f32(query[d]);
  }
  PagedRows rows() const {
    return paged_rows(layout.groups[0], 0, const_cast<std::byte*>(pages.data()), uint32_t(page_ids.size()));
  }

  std::vector<float> attend(uint32_t row, uint32_t window, float soft_cap, const float* sink) const {
    std::vector<float> out(kDim);
    PlainScratch scratch;
    const PlainAttention attention = {.query = query.data(),
                                      .rows = rows(),
                                      .key_format = layout.groups[0].layers[0].shape.key_format,
                                      .value_format = layout.groups[0].layers[0].shape.value_format,
                                      .page_ids = page_ids.data(),
                                      .kv_head = 0,
                                      .row = row,
                                      .window = window,
                                      .scale = score_scale(1.0f / 8, soft_cap),
                                      .sink = sink,
                                      .out = out.data()};
    attend_plainly(attention, scratch);
    return out;
  }

  std::vector<double> exact(uint32_t row, uint32_t window, float soft_cap, const float* sink) const {
    std::vector<double> out(kDim);
    double sum = sink == nullptr ? 0 : std::exp(double(*sink));
    std::vector<float> keys(kDim), values(kDim);
    for (uint32_t key = first_visible(row, window); key <= row; ++key) {
      const uint32_t page = page_ids[key / kPageTokens], at = key % kPageTokens;
      load_kv_row(key_format, rows().key_row(page, 0, at), keys);
      load_kv_row(value_format, rows().value_row(page, 0, at), values);
      double score = 0;
      for (uint32_t d = 0; d < kDim; ++d) score += double(query_number(d)) * double(keys[d]);
      for (uint32_t d = 0; d < kDim && kind == Keys::that_go_on; ++d)
        score += double(query_number(kDim + d)) * double(values[d]);
      score /= 8;
      if (soft_cap > 0) score = double(soft_cap) * std::tanh(score / double(soft_cap));
      const double p = std::exp(score);
      sum += p;
      for (uint32_t d = 0; d < kDim; ++d) out[d] += p * double(values[d]);
    }
    for (double& value : out) value /= sum;
    if (!is_turned(value_format)) return out;
    std::vector<float> turned(out.begin(), out.end());
    turn_kv_row(turned);
    return {turned.begin(), turned.end()};
  }
};

double distance(const std::vector<float>& a, const std::vector<double>& b) {
  double error = 0, size = 0;
  for (size_t i = 0; i < b.size(); ++i) {
    error += (double(a[i]) - b[i]) * (double(a[i]) - b[i]);
    size += b[i] * b[i];
  }
  return std::sqrt(error / size);
}

TEST(AttentionRule, IsSoftmaxWithinTheRoundingOfShares) {
  const float sink = 1.5f;
  for (const KvFormat format : {KvFormat::bf16, KvFormat::f16}) {
    const Sequence sequence(format, format, 1200, 6);
    for (const uint32_t row : {0u, 1u, 127u, 128u, 511u, 512u, 700u, 1199u}) {
      for (const uint32_t window : {0u, 1u, 130u}) {
        for (const float soft_cap : {0.0f, 10.0f}) {
          for (const float* its_sink : {static_cast<const float*>(nullptr), &sink}) {
            const std::vector<float> out = sequence.attend(row, window, soft_cap, its_sink);
            const std::vector<double> exact = sequence.exact(row, window, soft_cap, its_sink);
            EXPECT_LT(distance(out, exact), format == KvFormat::bf16 ? 4e-3 : 5e-4)
                << "row " << row << " window " << window << " cap " << soft_cap;
          }
        }
      }
    }
  }
}

// Keys in f32 lose more by being rounded than those whose codes bf16 holds.
TEST(AttentionRule, ReadsRowsOfEveryPairOfFormats) {
  for (const KvFormat keys : kKvFormats) {
    for (const KvFormat values : kKvFormats) {
      const Sequence sequence(keys, values, 300, 2);
      for (const uint32_t row : {0u, 5u, 299u}) {
        EXPECT_LT(distance(sequence.attend(row, 0, 0, nullptr), sequence.exact(row, 0, 0, nullptr)),
                  keys == KvFormat::f32 ? 1e-2 : 5e-3)
            << name(keys) << " and " << name(values) << ", row " << row;
      }
    }
  }
}

TEST(AttentionRule, AddsTheScoresOfAValueThatAKeyGoesOnIn) {
  for (const KvFormat keys : kKvFormats) {
    for (const KvFormat values : kKvFormats) {
      const Sequence sequence(keys, values, 300, 2, Keys::that_go_on);
      const bool rounds = keys == KvFormat::f32 || values == KvFormat::f32;
      for (const uint32_t row : {0u, 5u, 299u}) {
        EXPECT_LT(distance(sequence.attend(row, 0, 0, nullptr), sequence.exact(row, 0, 0, nullptr)),
                  rounds ? 1.5e-2 : 5e-3)
            << name(keys) << " and " << name(values) << ", row " << row;
      }
    }
  }
}

TEST(KvRowNumbers, AreTheCpusButForOneRounding) {
  constexpr uint32_t kDims[] = {8, 40, 64, 88, 128};
  std::mt19937 random(5);
  std::normal_distribution<float> normal;
  for (const KvFormat format : kKvFormats) {
    for (const uint32_t dim : kDims) {
      std::vector<float> values(dim), cpu(dim);
      for (float& value : values) value = normal(random);
      std::vector<std::byte> row(kv_row_bytes(format, dim));
      store_kv_row(format, values, row.data());
      load_kv_row(format, row.data(), cpu);
      const float factor = row_factor(format, row.data(), dim);
      for (uint32_t d = 0; d < dim; ++d) {
        SCOPED_TRACE(std::string(name(format)) + " " + std::to_string(d) + " of " + std::to_string(dim));
        EXPECT_EQ(row_value(format, row.data(), dim, d), cpu[d]);
        const uint16_t bits = row_number(format, row.data(), dim, d);
        if (has_factors(format)) {
          EXPECT_EQ(bf16_to_f32(bits) * factor, cpu[d]);
        } else {
          EXPECT_EQ(bits, numbers_of(format) == HalfKind::bf16 ? f32_to_bf16(cpu[d]) : f32_to_f16(cpu[d]));
        }
      }
    }
  }
}

TEST(KvRowNumbers, RoundOnce) {
  // 2049 + 2^-24 is nearer to 2050 than to 2048; in f32 the rest is lost, and the tie goes to 2048.
  EXPECT_EQ(f16_number(f16_bits(cut_to_odd(2049.0 + 0x1p-24))), 2050.0f);
  EXPECT_EQ(f16_number(f16_bits(2049.0f)), 2048.0f);
  EXPECT_EQ(f16_bits(65519.0f), 0x7bffu);
  EXPECT_EQ(f16_bits(65520.0f), 0x7c00u);
  for (uint32_t bits = 0; bits < 0x7c00u; ++bits) ASSERT_EQ(f16_bits(f16_number(uint16_t(bits))), bits);
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
