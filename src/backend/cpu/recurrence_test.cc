#include <cmath>
#include <cstring>
#include <random>
#include <vector>

#include <gtest/gtest.h>

#include "backend/cpu/kernel_choice.h"

namespace quire {
namespace {

constexpr Recurrence kAll[] = {Recurrence::delta, Recurrence::delta_of_keys, Recurrence::state_space,
                               Recurrence::selective};

// Rows of query, key and value, decays (of selective: rates) and betas, and a state to begin with.
struct RecurrenceCase {
  RecurrenceCase(Recurrence kind, size_t keys, size_t width, size_t tokens)
      : kind(kind),
        keys(keys),
        width(width),
        tokens(tokens),
        rows(tokens * stride()),
        decays(kind == Recurrence::selective ? keys * kStateValues : tokens * decay_stride()),
        betas(tokens * beta_stride()),
        state(keys * kStateValues) {
    std::mt19937 random(uint32_t(keys * 1000 + width * 10 + tokens));
    std::normal_distribution<float> normal;
    for (float& value : rows) value = normal(random) / std::sqrt(float(keys));
    for (float& value : decays)
      value = kind == Recurrence::selective ? -std::abs(normal(random))
                                            : 1 - 0.5f * std::abs(std::tanh(normal(random)));
    for (float& value : betas) value = 0.5f + 0.5f * std::tanh(normal(random));
    for (size_t k = 0; k < keys; ++k) {
      for (size_t v = 0; v < width; ++v) state[k * kStateValues + v] = normal(random);
    }
  }
  size_t stride() const { return 2 * keys + width + 3; }
  size_t decay_stride() const {
    if (kind == Recurrence::selective) return 0;
    return kind == Recurrence::delta_of_keys ? keys : 1;
  }
  size_t beta_stride() const { return kind == Recurrence::selective ? width : 1; }
  const float* query(size_t t) const { return rows.data() + t * stride(); }
  const float* key(size_t t) const { return query(t) + keys; }
  const float* value(size_t t) const { return key(t) + keys; }
  double beta(size_t t, size_t v) const {
    return double(betas[t * beta_stride() + (kind == Recurrence::selective ? v : 0)]);
  }
  double decay(size_t t, size_t k, size_t v) const {
    if (kind == Recurrence::selective) return std::exp(double(decays[k * kStateValues + v]) * beta(t, v));
    return double(decays[t * decay_stride() + (kind == Recurrence::delta_of_keys ? k : 0)]);
  }

  struct Result {
    std::vector<float> state, out;
    bool operator==(const Result& other) const {
      return std::memcmp(state.data(), other.state.data(), state.size() * sizeof(float)) == 0 &&
             std::memcmp(out.data(), other.out.data(), out.size() * sizeof(float)) == 0;
    }
  };
  // In runs of at most `chunk` tokens.
  Result run(const CpuKernels& kernels, size_t chunk) const {
    Result result{state, std::vector<float>(tokens * width)};
    for (size_t t = 0; t < tokens; t += chunk) {
      kernels.recurrence[size_t(kind)]({.state = result.state.data(),
                                        .keys = keys,
                                        .tokens = std::min(chunk, tokens - t),
                                        .query = query(t),
                                        .key = key(t),
                                        .key_stride = stride(),
                                        .value = value(t),
                                        .value_stride = stride(),
                                        .width = width,
                                        .decay = decays.data() + t * decay_stride(),
                                        .decay_stride = decay_stride(),
                                        .beta = betas.data() + t * beta_stride(),
                                        .beta_stride = beta_stride(),
                                        .out = result.out.data() + t * width,
                                        .out_stride = width});
    }
    return result;
  }

  Recurrence kind;
  size_t keys, width, tokens;
  std::vector<float> rows, decays, betas, state;
};

TEST(Recurrence, IsWhatItSaysComputedPlainly) {
  for (const Recurrence kind : kAll) {
    const RecurrenceCase given(kind, 16, 21, 9);
    std::vector<double> state(16 * 21);
    for (size_t k = 0; k < 16; ++k) {
      for (size_t v = 0; v < 21; ++v) state[k * 21 + v] = double(given.state[k * kStateValues + v]);
    }
    const bool corrects = kind == Recurrence::delta || kind == Recurrence::delta_of_keys;
    const RecurrenceCase::Result seen = given.run(scalar_kernels(), 9);
    for (size_t t = 0; t < 9; ++t) {
      for (size_t v = 0; v < 21; ++v) {
        double has = 0, read = 0;
        for (size_t k = 0; k < 16; ++k) {
          state[k * 21 + v] *= given.decay(t, k, v);
          has += state[k * 21 + v] * double(given.key(t)[k]);
        }
        const double added = given.beta(t, v) * (double(given.value(t)[v]) - (corrects ? has : 0));
        for (size_t k = 0; k < 16; ++k) {
          state[k * 21 + v] += double(given.key(t)[k]) * added;
          read += state[k * 21 + v] * double(given.query(t)[k]);
        }
        EXPECT_NEAR(seen.out[t * 21 + v], read, 2e-6) << int(kind) << " " << t << " " << v;
      }
    }
  }
}

TEST(Recurrence, GivesTheSameBitsInEveryKernelSetAndAnyRuns) {
  for (const Recurrence kind : kAll) {
    for (const auto& [keys, width, tokens] :
         {std::tuple(4, 1, 1), std::tuple(8, 12, 7), std::tuple(128, 32, 20), std::tuple(20, 31, 5)}) {
      const RecurrenceCase given{kind, size_t(keys), size_t(width), size_t(tokens)};
      const RecurrenceCase::Result expected = given.run(scalar_kernels(), size_t(tokens));
      for (const CpuKernels& kernels : present_kernels()) {
        for (const size_t chunk : {1u, 3u, 20u})
          EXPECT_TRUE(given.run(kernels, chunk) == expected)
              << kernels.name << " " << int(kind) << " " << keys << " " << chunk;
      }
    }
  }
}

TEST(Recurrence, ConvolutionsAreSumsInTheOrderOfTheirRowsInEveryKernelSet) {
  for (const auto& [span, count] : {std::pair(2, 5), std::pair(3, 64), std::pair(4, 77), std::pair(7, 33)}) {
    std::mt19937 random(uint32_t(span * 100 + count));
    std::normal_distribution<float> normal;
    std::vector<float> values(size_t(span * count)), weights(values.size()), bias(size_t(count), 0.0f);
    for (auto* each : {&values, &weights, &bias}) {
      for (float& value : *each) value = normal(random);
    }
    std::vector<const float*> rows;
    for (int i = 0; i < span; ++i) rows.push_back(values.data() + i * count);
    for (const float* offset : {static_cast<const float*>(nullptr), static_cast<const float*>(bias.data())}) {
      for (const CpuKernels& kernels : present_kernels()) {
        std::vector<float> out(size_t(count), -1.0f);
        kernels.convolve({rows.data(), size_t(span), weights.data(), offset, out.data(), size_t(count)});
        for (size_t c = 0; c < out.size(); ++c) {
          float sum = offset == nullptr ? 0.0f : offset[c];
          for (size_t i = 0; i < rows.size(); ++i) sum += rows[i][c] * weights[i * out.size() + c];
          EXPECT_EQ(out[c], sum) << kernels.name << " " << span << " " << c;
        }
      }
    }
  }
}

TEST(Recurrence, StepsAndDecaysAreNearTheirDefinitionAndTheSameInEveryKernelSet) {
  std::vector<float> values, bias, rate;
  for (int i = 0; i < 403; ++i) {
    values.push_back(float(i - 201) * 0.3f);
    bias.push_back(float(i % 7) * 0.1f - 0.3f);
    rate.push_back(-0.02f * float(i % 50));
  }
  const size_t count = values.size();
  std::vector<float> first_steps, first_decays;
  for (const CpuKernels& kernels : present_kernels()) {
    std::vector<float> steps(count), decays(count);
    kernels.steps(values.data(), bias.data(), rate.data(), steps.data(), decays.data(), count);
    for (size_t i = 0; i < count; ++i) {
      const double x = double(values[i] + bias[i]);
      const double step = std::max(x, 0.0) + std::log1p(std::exp(-std::abs(x)));
      EXPECT_NEAR(steps[i], step, 3e-7 * step + 1e-37) << x;
      EXPECT_NEAR(decays[i], std::exp(step * double(rate[i])), 4e-6) << x;
    }
    if (first_steps.empty()) std::tie(first_steps, first_decays) = std::pair(steps, decays);
    EXPECT_EQ(steps, first_steps) << kernels.name;
    EXPECT_EQ(decays, first_decays) << kernels.name;
  }
  float huge[] = {1e30f, NAN, -INFINITY, INFINITY}, none[4] = {}, steps[4];
  scalar_kernels().steps(huge, none, nullptr, steps, nullptr, 4);
  EXPECT_EQ(steps[0], 1e30f);
  EXPECT_TRUE(std::isnan(steps[1]));
  EXPECT_EQ(steps[2], 0.0f);
  EXPECT_EQ(steps[3], INFINITY);
}

}  // namespace
}  // namespace quire
