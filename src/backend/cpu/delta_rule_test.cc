#include <cmath>
#include <cstring>
#include <random>
#include <vector>

#include <gtest/gtest.h>

#include "backend/cpu/kernel_choice.h"

namespace quire {
namespace {

struct DeltaCase {
  DeltaCase(size_t key_dim, size_t width, size_t tokens)
      : key_dim(key_dim),
        width(width),
        tokens(tokens),
        rows(tokens * stride()),
        gates(tokens * 2),
        state(key_dim * kDeltaValues) {
    std::mt19937 random(uint32_t(key_dim * 1000 + width * 10 + tokens));
    std::normal_distribution<float> normal;
    for (float& value : rows) value = normal(random) / std::sqrt(float(key_dim));
    for (size_t t = 0; t < tokens; ++t) {
      gates[2 * t] = 1 - 0.5f * std::abs(std::tanh(normal(random)));
      gates[2 * t + 1] = 0.5f + 0.5f * std::tanh(normal(random));
    }
    for (size_t k = 0; k < key_dim; ++k) {
      for (size_t v = 0; v < width; ++v) state[k * kDeltaValues + v] = normal(random);
    }
  }
  size_t stride() const { return 2 * key_dim + width + 3; }
  const float* query(size_t t) const { return rows.data() + t * stride(); }
  const float* key(size_t t) const { return query(t) + key_dim; }
  const float* value(size_t t) const { return key(t) + key_dim; }

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
      kernels.delta_rule({.state = result.state.data(),
                          .key_dim = key_dim,
                          .tokens = std::min(chunk, tokens - t),
                          .query = query(t),
                          .key = key(t),
                          .value = value(t),
                          .stride = stride(),
                          .width = width,
                          .decay = &gates[2 * t],
                          .beta = &gates[2 * t + 1],
                          .gate_stride = 2,
                          .out = result.out.data() + t * width,
                          .out_stride = width});
    }
    return result;
  }

  size_t key_dim, width, tokens;
  std::vector<float> rows, gates, state;
};

TEST(DeltaRule, IsWhatItSaysComputedPlainly) {
  const DeltaCase given(16, 21, 9);
  std::vector<double> state(16 * 21);
  for (size_t k = 0; k < 16; ++k) {
    for (size_t v = 0; v < 21; ++v) state[k * 21 + v] = double(given.state[k * kDeltaValues + v]);
  }
  const DeltaCase::Result seen = given.run(scalar_kernels(), 9);
  for (size_t t = 0; t < 9; ++t) {
    for (size_t v = 0; v < 21; ++v) {
      double has = 0, read = 0;
      for (size_t k = 0; k < 16; ++k) {
        state[k * 21 + v] *= double(given.gates[2 * t]);
        has += state[k * 21 + v] * double(given.key(t)[k]);
      }
      for (size_t k = 0; k < 16; ++k) {
        state[k * 21 + v] +=
            double(given.key(t)[k]) * double(given.gates[2 * t + 1]) * (double(given.value(t)[v]) - has);
        read += state[k * 21 + v] * double(given.query(t)[k]);
      }
      EXPECT_NEAR(seen.out[t * 21 + v], read, 2e-6) << t << " " << v;
    }
  }
}

TEST(DeltaRule, GivesTheSameBitsInEveryKernelSetAndAnyRuns) {
  for (const auto& [key_dim, width, tokens] :
       {std::tuple(4, 1, 1), std::tuple(8, 12, 7), std::tuple(128, 32, 20), std::tuple(20, 31, 5)}) {
    const DeltaCase given{size_t(key_dim), size_t(width), size_t(tokens)};
    const DeltaCase::Result expected = given.run(scalar_kernels(), size_t(tokens));
    for (const CpuKernels& kernels : present_kernels()) {
      for (const size_t chunk : {1u, 3u, 20u})
        EXPECT_TRUE(given.run(kernels, chunk) == expected) << kernels.name << " " << key_dim << " " << chunk;
    }
  }
}

}  // namespace
}  // namespace quire
