#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>
#include <numeric>
#include <vector>

#include "backend/cpu/cpu_backend.h"
#include "base/check.h"
#include "base/philox.h"

namespace quire {
namespace {

struct Candidate {
  TokenId token;
  float logit;
  float probability = 0;
};

bool better(const Candidate& a, const Candidate& b) {
  return a.logit != b.logit ? a.logit > b.logit : a.token < b.token;
}

// A broken model can give NaN, which no order survives: such a token is impossible.
std::vector<float> comparable(std::span<const float> logits) {
  std::vector<float> values(logits.begin(), logits.end());
  for (float& value : values) {
    if (std::isnan(value)) value = -std::numeric_limits<float>::infinity();
  }
  return values;
}

void apply_bias_and_penalties(const SampleParams& params, std::span<float> logits) {
  for (const auto& [token, bias] : params.logit_bias) {
    if (token < logits.size()) logits[token] += bias;
  }
  for (const SampleParams::Seen& seen : params.seen) {
    if (seen.token >= logits.size()) continue;
    float& logit = logits[seen.token];
    logit = logit > 0 ? logit / params.repetition_penalty : logit * params.repetition_penalty;
    if (seen.in_answer == 0) continue;
    logit -= params.presence_penalty + params.frequency_penalty * float(seen.in_answer);
  }
}

void set_probabilities(std::vector<Candidate>& sorted) {
  const float max = sorted.front().logit;
  float sum = 0;
  for (Candidate& c : sorted) sum += c.probability = std::exp(c.logit - max);
  for (Candidate& c : sorted) c.probability /= sum;
}

// Keeps the tokens whose surprise is nearest to the expected one, until they hold `mass` of the probability.
void keep_typical(std::vector<Candidate>& sorted, float mass) {
  set_probabilities(sorted);
  float entropy = 0;
  for (const Candidate& c : sorted) {
    if (c.probability > 0) entropy -= c.probability * std::log(c.probability);
  }
  const auto distance = [&](const Candidate& c) {
    return c.probability > 0 ? std::fabs(-std::log(c.probability) - entropy)
                             : std::numeric_limits<float>::infinity();
  };
  std::stable_sort(sorted.begin(), sorted.end(),
                   [&](const Candidate& a, const Candidate& b) { return distance(a) < distance(b); });
  float held = 0;
  size_t kept = 0;
  while (kept < sorted.size() && held < mass) held += sorted[kept++].probability;
  sorted.resize(std::max<size_t>(kept, 1));
  std::sort(sorted.begin(), sorted.end(), better);
}

void keep_top_p(std::vector<Candidate>& sorted, float mass) {
  set_probabilities(sorted);
  float held = 0;
  size_t kept = 0;
  while (kept < sorted.size() && held < mass) held += sorted[kept++].probability;
  sorted.resize(std::max<size_t>(kept, 1));
}

void keep_min_p(std::vector<Candidate>& sorted, float share) {
  const float threshold = sorted.front().logit + std::log(share);
  while (sorted.size() > 1 && sorted.back().logit < threshold) sorted.pop_back();
}

void filter(const SampleParams& params, std::vector<Candidate>& candidates) {
  const bool needs_order = params.top_p < 1 || params.min_p > 0 || params.typical < 1;
  if (params.top_k > 0 && params.top_k < candidates.size()) {
    std::partial_sort(candidates.begin(), candidates.begin() + params.top_k, candidates.end(), better);
    candidates.resize(params.top_k);
  } else if (needs_order) {
    std::sort(candidates.begin(), candidates.end(), better);
  }
  if (params.typical < 1) keep_typical(candidates, params.typical);
  if (params.top_p < 1) keep_top_p(candidates, params.top_p);
  if (params.min_p > 0) keep_min_p(candidates, params.min_p);
}

// Gumbel-max: the largest logit + noise is a draw from the softmax. Each token's noise has a key of its own,
// so the draw does not depend on which other tokens a filter left.
TokenId draw(const SampleParams& params, std::span<const Candidate> candidates) {
  const std::array<uint32_t, 2> key = {uint32_t(params.seed), uint32_t(params.seed >> 32)};
  TokenId winner = candidates.front().token;
  double best = -std::numeric_limits<double>::infinity();
  for (const Candidate& c : candidates) {
    const auto random = philox({c.token, params.position, params.choice, 0}, key);
    const uint64_t bits = (uint64_t(random[0]) << 32 | random[1]) >> 11;  // 53 bits
    const double uniform = (double(bits) + 0.5) * 0x1p-53;                // inside (0, 1)
    const double score = double(c.logit) - std::log(-std::log(uniform));
    if (score > best || (score == best && c.token < winner)) {
      best = score;
      winner = c.token;
    }
  }
  return winner;
}

// Those that may be drawn, by id.
std::vector<Candidate> candidates_of(const SampleParams& params, std::span<const float> logits) {
  std::vector<Candidate> candidates;
  if (params.allowed.empty()) {
    candidates.resize(logits.size());
    for (size_t i = 0; i < logits.size(); ++i) candidates[i] = {TokenId(i), logits[i]};
    return candidates;
  }
  for (size_t word = 0; word < params.allowed.size(); ++word) {
    for (uint32_t bits = params.allowed[word]; bits != 0; bits &= bits - 1) {
      const size_t token = word * 32 + size_t(std::countr_zero(bits));
      if (token < logits.size()) candidates.push_back({TokenId(token), logits[token]});
    }
  }
  CHECK(!candidates.empty());
  return candidates;
}

TokenId choose(const SampleParams& params) {
  std::vector<float> logits = comparable(params.logits);
  apply_bias_and_penalties(params, logits);
  if (params.temperature <= 0 && params.allowed.empty())
    return TokenId(std::max_element(logits.begin(), logits.end()) - logits.begin());
  std::vector<Candidate> candidates = candidates_of(params, logits);
  if (params.temperature <= 0)
    return std::ranges::max_element(candidates, {}, &Candidate::logit)->token;  // the first of equals
  for (Candidate& candidate : candidates) candidate.logit /= params.temperature;
  filter(params, candidates);
  return draw(params, candidates);
}

void add_logprobs(const SampleParams& params, SampleResult& result) {
  const std::vector<float> logits = comparable(params.logits);
  const float max = *std::max_element(logits.begin(), logits.end());
  double sum = 0;
  for (float logit : logits) sum += std::exp(double(logit - max));
  const double log_sum = double(max) + std::log(sum);
  result.logprob = float(double(logits[result.token]) - log_sum);
  const size_t count = std::min<size_t>(params.top_logprobs, logits.size());
  std::vector<TokenId> order(logits.size());
  std::iota(order.begin(), order.end(), 0u);
  std::partial_sort(order.begin(), order.begin() + ptrdiff_t(count), order.end(), [&](TokenId a, TokenId b) {
    return logits[a] != logits[b] ? logits[a] > logits[b] : a < b;
  });
  for (size_t i = 0; i < count; ++i) {
    result.top_logprobs.push_back({order[i], float(double(logits[order[i]]) - log_sum)});
  }
  for (TokenId token : params.watched) {
    if (token >= logits.size()) continue;
    uint32_t before = 0;
    for (size_t i = 0; i < logits.size(); ++i)
      before += logits[i] > logits[token] || (logits[i] == logits[token] && i < token);
    result.watched.push_back({.token = token,
                              .rank = before + 1,
                              .logprob = float(double(logits[token]) - log_sum),
                              .loss = negative_log_likelihood(logits, token)});
  }
}

}  // namespace

double negative_log_likelihood(std::span<const float> logits, TokenId token) {
  const float max = *std::max_element(logits.begin(), logits.end());
  double sum = 0;
  for (float logit : logits) sum += std::exp(double(logit) - double(max));
  return std::log(sum) + double(max) - double(logits[token]);
}

void CpuBackend::sample(std::span<const SampleParams> params, std::span<SampleResult> results) {
  pool_.parallel_for(params.size(), 1, [&](size_t begin, size_t end) {
    for (size_t i = begin; i < end; ++i) {
      results[i] = {};
      results[i].token = choose(params[i]);
      if (params[i].logprobs) add_logprobs(params[i], results[i]);
    }
  });
}

}  // namespace quire
