#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "backend/sample.h"
#include "base/id.h"

namespace quire {

// How tokens are chosen. Values that switch something off are the defaults, but for the temperature.
struct SamplingOptions {
  float temperature = 0.8f;  // 0: greedy
  uint32_t top_k = 0;
  float top_p = 1;
  float min_p = 0;
  float typical = 1;
  float repetition_penalty = 1;
  float presence_penalty = 0;
  float frequency_penalty = 0;
  std::vector<std::pair<TokenId, float>> logit_bias;
  uint64_t seed = 0;

  // Throws Error naming the first value that is out of range.
  void check() const;
};

enum class FinishReason : uint8_t { none, stop, length };
std::string_view name(FinishReason reason);

// One token of an answer, as it comes.
struct TokenEvent {
  TokenId token = 0;
  std::string
      text;  // what can be shown now: complete characters, nothing that may turn out to be a stop string
  float logprob = 0;
  std::vector<TokenLogprob> top_logprobs;
};

// The immutable ask, and where its output goes.
struct Request {
  std::vector<TokenId> prompt;
  SamplingOptions sampling;
  uint32_t max_tokens = 0;  // 0: as many as the context has room for
  std::vector<std::string> stop;
  std::vector<TokenId> stop_tokens;  // besides the model's own end tokens
  bool ignore_end = false;           // goes on past the model's end tokens
  uint32_t choice = 0;               // which of several answers to the same prompt
  bool logprobs = false;
  uint32_t top_logprobs = 0;
  std::function<void(const TokenEvent&)> on_token;  // called by the engine's thread; may be empty
};

struct Timings {
  double ttft_ms = 0;
  double itl_ms_p50 = 0;
  double itl_ms_p99 = 0;
  double prefill_tok_s = 0;
  double decode_tok_s = 0;
};

// An answer once it is complete.
struct Answer {
  std::string text;
  std::vector<TokenId> tokens;  // the end token included
  std::vector<float> logprobs;  // if asked for
  uint32_t prompt_tokens = 0;
  FinishReason finish_reason = FinishReason::none;
  bool context_full = false;  // it was the context that ended it
  Timings timings;
  uint32_t kv_pages = 0;  // at its end
  size_t kv_bytes = 0;
};

}  // namespace quire
