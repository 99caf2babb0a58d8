#pragma once

#include <cstdint>
#include <span>
#include <utility>
#include <vector>

#include "base/id.h"

namespace quire {

// How one token is drawn from one row of logits, in this order: what is allowed, bias, penalties, temperature, top-k, typical,
// top-p, min-p, draw. Values that switch a filter off are the defaults.
struct SampleParams {
  std::span<const float> logits;
  float temperature = 0;  // 0: greedy, the lowest id among equals
  uint32_t top_k = 0;
  float top_p = 1;
  float min_p = 0;
  float typical = 1;
  float repetition_penalty = 1;
  float presence_penalty = 0;
  float frequency_penalty = 0;
  struct Seen {
    TokenId token;
    uint32_t in_answer;  // how often; 0: in the prompt only, where the repetition penalty alone counts
  };
  std::span<const Seen> seen = {};
  std::span<const std::pair<TokenId, float>> logit_bias = {};
  std::span<const uint32_t> allowed =
      {};             // the only tokens that may be drawn, as bits from the lowest on; empty: all
  uint64_t seed = 0;  // with choice and position: the key of the draw
  uint32_t choice = 0;
  uint32_t position = 0;
  uint32_t top_logprobs = 0;
  std::span<const TokenId> watched = {};  // whose ranks are wanted, with logprobs
  bool logprobs = false;
};

struct TokenLogprob {
  TokenId token = 0;
  float logprob = 0;
};

struct TokenRank {
  TokenId token = 0;
  uint32_t rank = 0;  // 1: the likeliest; among equals the lower id comes first
  float logprob = 0;
  double loss = 0;  // in nats, as `negative_log_likelihood` has it
};

struct SampleResult {
  TokenId token = 0;
  // It was settled after steps that follow had begun with another: what they compute from it is void.
  bool amended = false;
  float logprob = 0;                       // of the model itself: before temperature, filters and penalties
  std::vector<TokenLogprob> top_logprobs;  // best first
  std::vector<TokenRank> watched;          // in the order they were asked for
};

// Of a token after which a model gave these logits, in nats.
double negative_log_likelihood(std::span<const float> logits, TokenId token);

}  // namespace quire
