#include "backend/cuda/recurrent/state_part.h"

#include <cmath>
#include <random>
#include <vector>

#include <gtest/gtest.h>

#include "backend/cpu/kernel_choice.h"

namespace quire::cuda {
namespace {

// What four neighbouring threads of the device do for one value, here one after the other.
template <StateRule kRule, uint32_t kOwn>
struct Column {
  StatePart<kRule, kOwn> parts[kStateParts] = {};

  // All of one token's; beta is a step where each value has its own.
  float advance(uint32_t keys, const float* key, const float* query, const float* decay, float beta,
                float value) {
    float own[3][kStateParts][kOwn] = {};
    for (uint32_t k = 0; k < keys; ++k) {
      own[0][k % kStateParts][k / kStateParts] = key[k];
      own[1][k % kStateParts][k / kStateParts] = query[k];
      if (kRule == StateRule::delta_of_keys) own[2][k % kStateParts][k / kStateParts] = decay[k];
    }
    const auto sum = [](const float(&sums)[kStateParts]) {
      return sum_of_parts(sums[0], sums[1], sums[2], sums[3]);
    };
    float sums[kStateParts], has = 0;
    if (is_delta(kRule)) {
      for (uint32_t i = 0; i < kStateParts; ++i) sums[i] = parts[i].has(own[0][i], own[2][i]);
      has = sum(sums);
    }
    const float whole = kRule == StateRule::delta || kRule == StateRule::state_space ? decay[0] : 0.0f;
    const float added = parts[0].added(value, beta, whole, has);
    for (uint32_t i = 0; i < kStateParts; ++i)
      sums[i] = parts[i].advance(own[0][i], own[1][i], own[2][i], whole, beta, added);
    return sum(sums);
  }
};

template <StateRule kRule, Recurrence kKind, uint32_t kOwn>
void expect_the_bits_of_the_cpu(uint32_t keys) {
  constexpr uint32_t kTokens = 9, kWidth = 5;
  std::mt19937 random(keys);
  std::normal_distribution<float> normal;
  const auto numbers = [&](size_t count, float size) {
    std::vector<float> values(count);
    for (float& value : values) value = normal(random) * size;
    return values;
  };
  const float size = 1 / std::sqrt(float(keys));
  const std::vector<float> query = numbers(kTokens * keys, size), key = numbers(kTokens * keys, size),
                           value = numbers(kTokens * kWidth, 1);
  std::vector<float> before = numbers(keys * kStateValues, 1);
  const bool selective = kRule == StateRule::selective;
  const size_t decay_stride = selective ? 0 : kRule == StateRule::delta_of_keys ? keys : 1;
  std::vector<float> decay = selective ? numbers(keys * kStateValues, 1) : numbers(kTokens * decay_stride, 1);
  for (float& one : decay) one = selective ? -std::abs(one) : 1 - 0.5f * std::abs(std::tanh(one));
  const size_t beta_stride = selective ? kWidth : 1;
  std::vector<float> beta = numbers(kTokens * beta_stride, 1);
  for (float& one : beta) one = 0.5f + 0.5f * std::tanh(one);

  std::vector<Column<kRule, kOwn>> columns(kWidth);
  for (uint32_t v = 0; v < kWidth; ++v) {
    for (uint32_t k = 0; k < keys; ++k) {
      columns[v].parts[k % kStateParts].state[k / kStateParts] = before[k * kStateValues + v];
      if constexpr (kRule == StateRule::selective)
        columns[v].parts[k % kStateParts].rates[k / kStateParts] = decay[k * kStateValues + v];
    }
  }
  std::vector<float> wanted(kTokens * kWidth);
  scalar_kernels().recurrence[size_t(kKind)]({.state = before.data(),
                                              .keys = keys,
                                              .tokens = kTokens,
                                              .query = query.data(),
                                              .key = key.data(),
                                              .key_stride = keys,
                                              .value = value.data(),
                                              .value_stride = kWidth,
                                              .width = kWidth,
                                              .decay = decay.data(),
                                              .decay_stride = decay_stride,
                                              .beta = beta.data(),
                                              .beta_stride = beta_stride,
                                              .out = wanted.data(),
                                              .out_stride = kWidth});
  for (uint32_t t = 0; t < kTokens; ++t) {
    for (uint32_t v = 0; v < kWidth; ++v) {
      const float read =
          columns[v].advance(keys, &key[t * keys], &query[t * keys], &decay[t * decay_stride],
                             beta[t * beta_stride + (selective ? v : 0)], value[t * kWidth + v]);
      ASSERT_EQ(bits_of(read), bits_of(wanted[t * kWidth + v])) << t << " " << v;
    }
  }
  for (uint32_t v = 0; v < kWidth; ++v) {
    for (uint32_t k = 0; k < keys; ++k)
      EXPECT_EQ(columns[v].parts[k % kStateParts].state[k / kStateParts], before[k * kStateValues + v]);
  }
}

// Of as many keys as there is room for, and of fewer.
TEST(StatePart, FourTogetherHaveTheBitsOfTheCpu) {
  expect_the_bits_of_the_cpu<StateRule::delta, Recurrence::delta, 32>(128);
  expect_the_bits_of_the_cpu<StateRule::delta, Recurrence::delta, 16>(20);
  expect_the_bits_of_the_cpu<StateRule::delta_of_keys, Recurrence::delta_of_keys, 16>(64);
  expect_the_bits_of_the_cpu<StateRule::delta_of_keys, Recurrence::delta_of_keys, 4>(8);
  expect_the_bits_of_the_cpu<StateRule::state_space, Recurrence::state_space, 64>(256);
  expect_the_bits_of_the_cpu<StateRule::state_space, Recurrence::state_space, 32>(100);
  expect_the_bits_of_the_cpu<StateRule::selective, Recurrence::selective, 4>(16);
  expect_the_bits_of_the_cpu<StateRule::selective, Recurrence::selective, 16>(24);
}

TEST(DeviceMath, HasTheCpusStepsAndDecays) {
  std::vector<float> values, bias, rate;
  for (int i = -400; i <= 400; ++i) {
    values.push_back(float(i) * 0.25f);
    bias.push_back(float(i % 7) * 0.01f);
    rate.push_back(-0.001f * float(i % 50 * (i % 50)));
  }
  std::vector<float> steps(values.size()), decays(values.size());
  scalar_kernels().steps(values.data(), bias.data(), rate.data(), steps.data(), decays.data(), values.size());
  for (size_t i = 0; i < values.size(); ++i) {
    const float step = softplus_of(values[i] + bias[i]);
    EXPECT_EQ(bits_of(step), bits_of(steps[i])) << values[i];
    EXPECT_EQ(bits_of(exp_of(step * rate[i])), bits_of(decays[i])) << values[i];
  }
}

}  // namespace
}  // namespace quire::cuda
