#include <cmath>
#include <map>

#include <gtest/gtest.h>

#include "backend/cpu/cpu_backend.h"

namespace quire {
namespace {

class Sampling : public testing::Test {
 protected:
  TokenId draw(SampleParams params) {
    SampleResult result;
    backend_.sample({&params, 1}, {&result, 1});
    return result.token;
  }
  std::map<TokenId, int> count(SampleParams params, int draws) {
    std::map<TokenId, int> counts;
    for (int i = 0; i < draws; ++i) {
      params.position = uint32_t(i);
      ++counts[draw(params)];
    }
    return counts;
  }

  CpuBackend backend_{exact_kernels(), 1};
  std::vector<float> logits_ = {1.0f, 3.0f, 2.0f, -1.0f, 3.0f, 0.0f};
};

TEST_F(Sampling, GreedyTakesTheLowestIdAmongEquals) {
  EXPECT_EQ(draw({.logits = logits_, .temperature = 0}), 1u);
}

TEST_F(Sampling, DrawsFollowTheSoftmax) {
  const int draws = 20000;
  const auto counts = count({.logits = logits_, .temperature = 1, .seed = 5}, draws);
  double sum = 0;
  for (float logit : logits_) sum += std::exp(double(logit));
  double chi_squared = 0;
  for (size_t i = 0; i < logits_.size(); ++i) {
    const double expected = draws * std::exp(double(logits_[i])) / sum;
    const double seen = counts.contains(TokenId(i)) ? counts.at(TokenId(i)) : 0;
    chi_squared += (seen - expected) * (seen - expected) / expected;
  }
  EXPECT_LT(chi_squared, 20.5);  // 5 degrees of freedom, p = 0.001
}

TEST_F(Sampling, TheSameKeyGivesTheSameTokenAndAnotherKeyAnother) {
  const SampleParams params{.logits = logits_, .temperature = 5, .seed = 11, .choice = 1, .position = 9};
  const TokenId first = draw(params);
  EXPECT_EQ(draw(params), first);
  std::map<TokenId, int> others;
  for (uint64_t seed = 0; seed < 50; ++seed) {
    SampleParams other = params;
    other.seed = seed;
    ++others[draw(other)];
  }
  EXPECT_GT(others.size(), 3u);
}

TEST_F(Sampling, FiltersLeaveWhatTheirNamesSay) {
  const auto kept = [&](SampleParams params) {
    std::vector<TokenId> tokens;
    for (const auto& [token, times] : count(params, 3000)) tokens.push_back(token);
    return tokens;
  };
  SampleParams params{.logits = logits_, .temperature = 2, .seed = 3};
  params.top_k = 3;
  EXPECT_EQ(kept(params), (std::vector<TokenId>{1, 2, 4}));
  params.top_k = 0;
  params.top_p = 0.5f;  // of 0.30, 0.30, 0.18, 0.11, 0.07, 0.04 at this temperature
  EXPECT_EQ(kept(params), (std::vector<TokenId>{1, 4}));
  params.top_p = 1;
  params.min_p = 0.5f;  // exp((2 - 3) / 2) = 0.61 stays, exp((1 - 3) / 2) = 0.37 goes
  EXPECT_EQ(kept(params), (std::vector<TokenId>{1, 2, 4}));
  params.min_p = 0;
  params.typical = 0.15f;  // the entropy is 1.59 nats; the surprise of token 2 (1.70) is nearest
  EXPECT_EQ(kept(params), (std::vector<TokenId>{2}));
}

TEST_F(Sampling, BiasAndPenaltiesMoveTheGreedyChoice) {
  const std::vector<std::pair<TokenId, float>> bias = {{3, 10.0f}, {99, 100.0f}};
  EXPECT_EQ(draw({.logits = logits_, .logit_bias = bias}), 3u);
  const std::vector<SampleParams::Seen> seen = {{1, 0}, {4, 2}};
  EXPECT_EQ(draw({.logits = logits_, .repetition_penalty = 2, .seen = seen}), 2u);
  EXPECT_EQ(draw({.logits = logits_, .presence_penalty = 0.5f, .seen = seen}),
            1u);  // 1 is in the prompt only
  const std::vector<SampleParams::Seen> often = {{1, 1}, {4, 2}};
  EXPECT_EQ(draw({.logits = logits_, .frequency_penalty = 0.6f, .seen = often}),
            1u);  // 2.4 against 1.8 and 2
}

TEST_F(Sampling, LogprobsAreTheLogSoftmaxWhateverTheFilters) {
  SampleParams params{
      .logits = logits_, .temperature = 0.5f, .top_k = 1, .top_logprobs = 6, .logprobs = true};
  SampleResult result;
  backend_.sample({&params, 1}, {&result, 1});
  double sum = 0;
  for (const TokenLogprob& t : result.top_logprobs) sum += std::exp(double(t.logprob));
  EXPECT_NEAR(sum, 1.0, 1e-5);
  EXPECT_EQ(result.top_logprobs[0].token, 1u);
  EXPECT_EQ(result.top_logprobs[1].token, 4u);
  EXPECT_EQ(result.top_logprobs[5].token, 3u);
}

TEST_F(Sampling, SurvivesLogitsThatAreNotNumbers) {
  const std::vector<float> broken = {NAN, 1.0f, INFINITY, -INFINITY, NAN};
  EXPECT_EQ(draw({.logits = broken}), 2u);
  const TokenId drawn = draw({.logits = broken, .temperature = 1, .top_k = 3, .top_p = 0.9f, .seed = 1});
  EXPECT_LT(drawn, broken.size());
  const std::vector<float> all_nan(5, NAN);
  EXPECT_LT(draw({.logits = all_nan, .temperature = 1, .top_p = 0.5f, .min_p = 0.1f, .typical = 0.5f}), 5u);
}

}  // namespace
}  // namespace quire
