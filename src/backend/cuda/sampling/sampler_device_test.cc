#include <random>

#include <gtest/gtest.h>

#include "backend/cuda/device_case.h"
#include "backend/cuda/sampling/sampler.h"

namespace quire::cuda {
namespace {

using SamplerOnDevice = DeviceTest;

// Rows of logits like a model's: mostly noise, some peaks; what is asked for differs by row.
struct SampleCase {
  uint32_t vocabulary;
  std::vector<float> logits;
  std::vector<SampleParams> params;
  std::vector<std::vector<SampleParams::Seen>> seen;
  std::vector<std::vector<std::pair<TokenId, float>>> biases;

  SampleCase(uint32_t vocabulary, size_t rows, uint32_t seed) : vocabulary(vocabulary), random(seed) {
    std::normal_distribution<float> normal;
    logits.resize(rows * vocabulary);
    params.resize(rows);
    seen.resize(rows);
    biases.resize(rows);
    for (size_t r = 0; r < rows; ++r) {
      const float spread = 0.3f + float(random() % 40) / 10;
      for (uint32_t i = 0; i < vocabulary; ++i) logits[r * vocabulary + i] = normal(random) * spread;
      for (int peak = int(random() % 12); peak > 0; --peak)
        logits[r * vocabulary + random() % vocabulary] += float(random() % 160) / 10;
      if (r % 5 == 0) {  // equals
        for (int i = 0; i < 20; ++i) logits[r * vocabulary + random() % vocabulary] = 4.0f * spread;
      }
    }
  }

  std::span<const float> row(size_t r) const { return {logits.data() + r * vocabulary, vocabulary}; }

  // A random choice of the options that the device knows.
  void ask(size_t r) {
    SampleParams& p = params[r];
    p.logits = row(r);
    const auto sometimes = [&](uint32_t one_in) { return random() % one_in == 0; };
    const auto part = [&](float from, float to) {
      return from + (to - from) * float(random() % 1000) / 1000;
    };
    p.temperature = sometimes(4) ? 0.0f : part(0.1f, 2.0f);
    if (sometimes(2)) p.top_k = 1 + uint32_t(random() % (sometimes(3) ? 2000 : 60));
    if (sometimes(2)) p.top_p = part(0.02f, 1.0f);
    if (sometimes(3)) p.min_p = part(0.001f, 0.5f);
    p.seed = uint64_t(random()) << 32 | random();
    p.choice = uint32_t(random() % 3);
    p.position = uint32_t(random() % 100'000);
    p.logprobs = sometimes(2);
    if (p.logprobs && sometimes(2)) p.top_logprobs = uint32_t(random() % (Sampler::kMostTopLogprobs + 1));
    if (sometimes(3)) {
      p.repetition_penalty = part(0.8f, 1.5f);
      p.presence_penalty = part(-1, 2);
      p.frequency_penalty = part(-1, 1);
      for (uint32_t i = 0; i < 200; ++i)
        seen[r].push_back({TokenId((i * 7919 + r) % vocabulary), uint32_t(random() % 3)});
      p.seen = seen[r];
    }
    if (sometimes(4)) {
      for (uint32_t i = 0; i < 30; ++i)
        biases[r].push_back({TokenId(i * 613 % (vocabulary + 50)), part(-10, 10)});
      p.logit_bias = biases[r];
    }
  }

  std::mt19937 random;
};

// Compares all rows with the CPU's; returns how many the device left to it.
uint32_t compare(SampleCase& test, uint32_t& differing) {
  const size_t rows = test.params.size();
  const DeviceBuffer logits = DeviceBuffer::of(test.logits);
  Sampler sampler(uint32_t(rows), test.vocabulary);
  const Stream stream;
  std::vector<SampleResult> drawn(rows), wanted(rows);
  sampler.sample({logits.as<float>(), rows, test.vocabulary, test.vocabulary}, test.params, drawn,
                 stream.get());
  CpuBackend cpu(scalar_kernels(), 4);
  cpu.sample(test.params, wanted);
  const auto same = [](const TokenLogprob& a, const TokenLogprob& b) {
    return a.token == b.token && a.logprob == b.logprob;
  };
  for (size_t r = 0; r < rows; ++r) {
    const SampleResult &a = drawn[r], &b = wanted[r];
    const bool equal = a.token == b.token && a.logprob == b.logprob &&
                       std::ranges::equal(a.top_logprobs, b.top_logprobs, same);
    if (equal) continue;
    ++differing;
    const SampleParams& p = test.params[r];
    ADD_FAILURE() << "row " << r << ": " << a.token << " " << a.logprob << " instead of " << b.token << " "
                  << b.logprob << ", temperature " << p.temperature << " top_k " << p.top_k << " top_p "
                  << p.top_p << " min_p " << p.min_p << " seen " << p.seen.size() << " biases "
                  << p.logit_bias.size() << " top_logprobs " << a.top_logprobs.size() << "/"
                  << b.top_logprobs.size();
    if (differing >= 8) break;
  }
  return sampler.rows_left_to_cpu();
}

TEST_F(SamplerOnDevice, DrawsWhatTheCpuDraws) {
  uint32_t differing = 0, left = 0, rows = 0;
  for (uint32_t seed = 1; seed <= 20 && differing == 0; ++seed) {
    SampleCase test(seed % 4 == 0 ? 32'000u : seed % 4 == 1 ? 999u : 5'003u, 150, seed);
    for (size_t r = 0; r < test.params.size(); ++r) test.ask(r);
    left += compare(test, differing);
    rows += 150;
  }
  EXPECT_EQ(differing, 0u);
  EXPECT_LT(left, rows / 10) << "the device settles most rows itself";
  RecordProperty("left_to_cpu", int(left));
}

TEST_F(SamplerOnDevice, DrawsWhatTheCpuDrawsFromALargeVocabulary) {
  uint32_t differing = 0;
  SampleCase test(151'936, 24, 99);
  for (size_t r = 0; r < test.params.size(); ++r) test.ask(r);
  EXPECT_LE(compare(test, differing), 6u);
  EXPECT_EQ(differing, 0u);
}

TEST_F(SamplerOnDevice, LeavesRareOptionsToTheCpu) {
  SampleCase test(2'000, 4, 5);
  const TokenId watched[] = {17};
  const std::pair<TokenId, float> twice[] = {{3, 1.0f}, {3, 2.0f}};
  for (size_t r = 0; r < 4; ++r) {
    test.params[r].logits = test.row(r);
    test.params[r].temperature = 1;
  }
  test.params[0].typical = 0.5f;
  test.params[1].watched = watched;
  test.params[1].logprobs = true;
  test.params[2].logit_bias = twice;
  uint32_t differing = 0;
  EXPECT_EQ(compare(test, differing), 3u);
  EXPECT_EQ(differing, 0u);
}

TEST_F(SamplerOnDevice, SurvivesImpossibleTokens) {
  SampleCase test(1'000, 3, 6);
  const float nan = std::nanf(""), infinity = std::numeric_limits<float>::infinity();
  for (uint32_t i = 0; i < 1'000; ++i) {
    test.logits[i] = i == 700 ? 1.0f : nan;
    test.logits[1'000 + i] = -infinity;
    if (i % 3 == 0) test.logits[2'000 + i] = nan;
  }
  for (size_t r = 0; r < 3; ++r) {
    test.params[r].logits = test.row(r);
    test.params[r].temperature = r == 1 ? 0.0f : 0.8f;
    test.params[r].top_p = 0.9f;
  }
  uint32_t differing = 0;
  compare(test, differing);
  EXPECT_EQ(differing, 0u);
}

}  // namespace
}  // namespace quire::cuda
