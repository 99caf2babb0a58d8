#include <algorithm>
#include <cmath>
#include <limits>
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

TEST_F(Sampling, OnlyAllowedTokensAreDrawnAndAreDrawnAsIfTheOthersWereImpossible) {
  const std::vector<uint32_t> allowed = {0b101001};  // 0, 3 and 5
  EXPECT_EQ(draw({.logits = logits_, .temperature = 0, .allowed = allowed}), 0u);
  std::vector<float> impossible = logits_;
  for (const TokenId token : {1u, 2u, 4u}) impossible[token] = -std::numeric_limits<float>::infinity();
  for (uint32_t position = 0; position < 300; ++position) {
    const SampleParams with{.logits = logits_,
                            .temperature = 1.5f,
                            .top_p = 0.95f,
                            .allowed = allowed,
                            .seed = 3,
                            .position = position};
    const SampleParams without{
        .logits = impossible, .temperature = 1.5f, .top_p = 0.95f, .seed = 3, .position = position};
    EXPECT_EQ(draw(with), draw(without));
  }
  const std::vector<uint32_t> one = {1u << 3};
  EXPECT_EQ(draw({.logits = logits_, .temperature = 1, .top_k = 1, .allowed = one}), 3u);
}

TEST_F(Sampling, WatchedTokensHaveTheirPlaceInTheWholeDistribution) {
  const std::vector<TokenId> watched = {3, 4, 1, 99};
  SampleParams params{
      .logits = logits_, .temperature = 0.8f, .top_k = 1, .watched = watched, .logprobs = true};
  SampleResult result;
  backend_.sample({&params, 1}, {&result, 1});
  ASSERT_EQ(result.watched.size(), 3u);  // there is no token 99
  double sum = 0;
  for (float logit : logits_) sum += std::exp(double(logit));
  const uint32_t ranks[] = {6, 2, 1};  // 1 and 4 are equal: the lower id is first
  for (size_t i = 0; i < 3; ++i) {
    EXPECT_EQ(result.watched[i].token, watched[i]);
    EXPECT_EQ(result.watched[i].rank, ranks[i]);
    EXPECT_NEAR(std::exp(result.watched[i].logprob), std::exp(logits_[watched[i]]) / sum, 1e-6);
  }
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

// The distribution that a draw has, from the definitions and nothing else: by probabilities, with sets of tokens that are left.
std::map<TokenId, double> expected_distribution(const SampleParams& params) {
  std::map<TokenId, double> scores;
  for (TokenId t = 0; t < params.logits.size(); ++t) scores[t] = params.logits[t];
  for (const auto& [token, bias] : params.logit_bias) scores[token] += bias;
  for (const auto& seen : params.seen) {
    double& score = scores[seen.token];
    score = score > 0 ? score / params.repetition_penalty : score * params.repetition_penalty;
    if (seen.in_answer > 0) score -= params.presence_penalty + params.frequency_penalty * seen.in_answer;
  }
  const auto normalized = [](std::map<TokenId, double> shares) {
    double sum = 0;
    for (const auto& [token, share] : shares) sum += share;
    for (auto& [token, share] : shares) share /= sum;
    return shares;
  };
  // The tokens in the order of `less`, from the first on until they hold `mass`.
  const auto first_of_mass = [&](std::map<TokenId, double> shares, double mass, auto less) {
    std::vector<TokenId> order;
    for (const auto& [token, share] : shares) order.push_back(token);
    std::stable_sort(order.begin(), order.end(), less);
    std::map<TokenId, double> left;
    double held = 0;
    for (TokenId token : order) {
      if (held >= mass) break;
      left[token] = shares[token];
      held += shares[token];
    }
    return normalized(left);
  };
  std::map<TokenId, double> shares;
  for (const auto& [token, score] : scores) shares[token] = std::exp(score / params.temperature);
  shares = normalized(shares);
  const auto likelier = [&](TokenId a, TokenId b) { return shares[a] > shares[b]; };
  if (params.top_k > 0) {
    std::vector<TokenId> order;
    for (const auto& [token, share] : shares) order.push_back(token);
    std::stable_sort(order.begin(), order.end(), likelier);
    for (size_t i = params.top_k; i < order.size(); ++i) shares.erase(order[i]);
    shares = normalized(shares);
  }
  if (params.typical < 1) {
    double entropy = 0;
    for (const auto& [token, share] : shares) entropy -= share * std::log(share);
    shares = first_of_mass(shares, params.typical, [&](TokenId a, TokenId b) {
      return std::fabs(-std::log(shares[a]) - entropy) < std::fabs(-std::log(shares[b]) - entropy);
    });
  }
  if (params.top_p < 1) shares = first_of_mass(shares, params.top_p, likelier);
  if (params.min_p > 0) {
    double most = 0;
    for (const auto& [token, share] : shares) most = std::max(most, share);
    std::erase_if(shares, [&](const auto& entry) { return entry.second < params.min_p * most; });
    shares = normalized(shares);
  }
  return shares;
}

TEST_F(Sampling, DrawsFollowTheDistributionThatEveryFilterAndPenaltyLeaves) {
  const std::vector<float> logits = {1.0f, 2.9f, 2.0f, -1.0f, 3.1f, 0.2f, 1.6f, -0.4f};
  const std::vector<SampleParams::Seen> seen = {{4, 2}, {2, 1}, {3, 0}};
  const std::vector<std::pair<TokenId, float>> bias = {{0, 1.5f}, {1, -2.0f}};
  const std::vector<SampleParams> cases = {
      {.logits = logits, .temperature = 0.7f},
      {.logits = logits, .temperature = 2.0f},
      {.logits = logits, .temperature = 1, .top_k = 3},
      {.logits = logits, .temperature = 1.3f, .top_p = 0.8f},
      {.logits = logits, .temperature = 1, .min_p = 0.2f},
      {.logits = logits, .temperature = 1, .typical = 0.7f},
      {.logits = logits, .temperature = 1, .repetition_penalty = 1.4f, .seen = seen},
      {.logits = logits, .temperature = 1, .presence_penalty = 0.8f, .frequency_penalty = 0.5f, .seen = seen},
      {.logits = logits, .temperature = 1, .logit_bias = bias},
      {.logits = logits,
       .temperature = 0.9f,
       .top_k = 6,
       .top_p = 0.95f,
       .min_p = 0.03f,
       .typical = 0.97f,
       .repetition_penalty = 1.2f,
       .presence_penalty = 0.2f,
       .frequency_penalty = 0.1f,
       .seen = seen,
       .logit_bias = bias},
  };
  const double bound[] = {0, 10.8, 13.8, 16.3, 18.5, 20.5, 22.5, 24.3};  // by degrees of freedom, p = 0.001
  for (size_t c = 0; c < cases.size(); ++c) {
    SampleParams params = cases[c];
    params.seed = 100 + c;
    const std::map<TokenId, double> expected = expected_distribution(params);
    const int draws = 20000;
    const std::map<TokenId, int> counts = count(params, draws);
    double chi_squared = 0;
    for (const auto& [token, share] : expected) {
      const double seen_count = counts.contains(token) ? counts.at(token) : 0;
      chi_squared += (seen_count - draws * share) * (seen_count - draws * share) / (draws * share);
    }
    for (const auto& [token, times] : counts)
      EXPECT_TRUE(expected.contains(token)) << "case " << c << " drew token " << token;
    EXPECT_LT(chi_squared, bound[expected.size() - 1]) << "case " << c;
  }
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
