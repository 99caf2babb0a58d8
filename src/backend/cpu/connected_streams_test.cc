#include <algorithm>
#include <cmath>
#include <random>
#include <vector>

#include <gtest/gtest.h>

#include "backend/cpu/cpu_backend.h"
#include "backend/cpu/kernel_choice.h"

namespace quire {
namespace {

using What = ConnectStreamsParams::What;
constexpr uint32_t kCount = 4;
constexpr size_t kDim = 20, kTokens = 9, kRouted = (2 + kCount) * kCount;
constexpr float kEpsilon = 1e-3f;

std::vector<float> random_values(size_t count, uint32_t seed) {
  std::mt19937 random(seed);
  std::vector<float> values(count);
  for (float& value : values) value = float(int(random() % 2001) - 1000) / 500.0f;
  return values;
}

Weight weight_of(const std::vector<float>& values) {
  return {{reinterpret_cast<const std::byte*>(values.data()), DType::f32, 1, values.size()}, nullptr};
}

double sigmoid(double x) {
  return 1 / (1 + std::exp(-x));
}

// Streams of some tokens, and what is done with them.
struct Streams {
  std::vector<float> streams = std::vector<float>(kTokens * ConnectStreamsParams::width(kDim, kCount));
  std::vector<float> routed = random_values(kTokens * kRouted, 2), scale = {0.7f, 1.3f, 0.9f};
  std::vector<float> base = random_values(kRouted, 3);

  std::vector<float> run(CpuBackend& backend, What what, std::vector<float> stream,
                         uint32_t iterations = 20) {
    const size_t width = ConnectStreamsParams::width(kDim, kCount);
    backend.connect_streams({.what = what,
                             .stream = {stream.data(), kTokens, kDim, kDim},
                             .streams = {streams.data(), kTokens, width, width},
                             .count = kCount,
                             .iterations = iterations,
                             .epsilon = kEpsilon,
                             .routed = {routed.data(), kTokens, kRouted, kRouted},
                             .scale = weight_of(scale),
                             .base = weight_of(base)});
    return stream;
  }
  float* of(size_t token) { return streams.data() + token * ConnectStreamsParams::width(kDim, kCount); }
};

TEST(ConnectedStreams, BeginAlikeAndStayAsTheyAreWhenNothingWasRead) {
  CpuBackend backend(scalar_kernels(), 2);
  Streams all;
  const std::vector<float> embedding = random_values(kTokens * kDim, 1);
  all.run(backend, What::open, embedding);
  all.run(backend, What::give, embedding);
  for (size_t t = 0; t < kTokens; ++t) {
    for (size_t i = 0; i < kCount * kDim; ++i) EXPECT_EQ(all.of(t)[i], embedding[t * kDim + i % kDim]);
  }
}

TEST(ConnectedStreams, AreReadAndGivenToAsIsWritten) {
  for (const uint32_t iterations : {1u, 2u, 20u}) {
    CpuBackend backend(scalar_kernels(), 2);
    Streams all;
    all.run(backend, What::open, random_values(kTokens * kDim, 1));
    for (size_t t = 0; t < kTokens; ++t) {
      const std::vector<float> own = random_values(kCount * kDim, 10 + uint32_t(t));
      std::copy(own.begin(), own.end(), all.of(t));
    }
    Streams before = all;
    const std::vector<float> read =
        all.run(backend, What::take, random_values(kTokens * kDim, 4), iterations);
    const std::vector<float> made = random_values(kTokens * kDim, 5);
    all.run(backend, What::give, made);
    for (size_t t = 0; t < kTokens; ++t) {
      const float* routed = &all.routed[t * kRouted];
      double comb[kCount][kCount];
      for (size_t j = 0; j < kCount; ++j) {
        double sum = 0;
        for (size_t k = 0; k < kCount; ++k) {
          const size_t at = 2 * kCount + j * kCount + k;
          comb[j][k] = std::exp(double(routed[at]) * double(all.scale[2]) + double(all.base[at]));
          sum += comb[j][k];
        }
        for (double& one : comb[j]) one = one / sum + double(kEpsilon);
      }
      const auto divide = [&](bool columns) {
        for (size_t line = 0; line < kCount; ++line) {
          double sum = 0;
          for (size_t i = 0; i < kCount; ++i) sum += columns ? comb[i][line] : comb[line][i];
          for (size_t i = 0; i < kCount; ++i)
            (columns ? comb[i][line] : comb[line][i]) /= sum + double(kEpsilon);
        }
      };
      divide(true);
      for (uint32_t i = 1; i < iterations; ++i) {
        divide(false);
        divide(true);
      }
      for (size_t i = 0; i < kDim; ++i) {
        double mix = 0;
        for (size_t s = 0; s < kCount; ++s) {
          const double pre = sigmoid(double(routed[s]) * double(all.scale[0]) + double(all.base[s]));
          mix += (pre + double(kEpsilon)) * double(before.of(t)[s * kDim + i]);
        }
        EXPECT_NEAR(double(read[t * kDim + i]), mix, 1e-5);
        for (size_t k = 0; k < kCount; ++k) {
          const size_t at = kCount + k;
          double given = 2 * sigmoid(double(routed[at]) * double(all.scale[1]) + double(all.base[at])) *
                         double(made[t * kDim + i]);
          for (size_t j = 0; j < kCount; ++j) given += comb[j][k] * double(before.of(t)[j * kDim + i]);
          EXPECT_NEAR(double(all.of(t)[k * kDim + i]), given, 1e-5);
        }
      }
    }
  }
}

}  // namespace
}  // namespace quire
