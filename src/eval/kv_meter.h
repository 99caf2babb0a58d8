#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include "engine/engine.h"

namespace quire {

struct KvMeterOptions {
  KvFormats kv_formats = KvFormat::int8;
  uint32_t window = 2048;    // tokens of the text that are read from an empty context on
  uint32_t speed_steps = 8;  // decode steps that are timed at the end of a window; 0: none
};

// What a KV format costs on a text, beside 16-bit floats: the same tokens read with both. And with 32-bit floats, whose
// difference is no loss but the kernels' own noise: rounded activations make much of the last bit.
struct KvMeterResult {
  struct Span {
    uint32_t begin = 0, end = 0;  // positions in the window
    size_t tokens = 0;
    double nll_base = 0, nll = 0;      // sums, in nats
    double divergence = 0, noise = 0;  // sums
    size_t agreed = 0, noise_agreed = 0;

    double perplexity_base() const;
    double perplexity() const;
  };
  size_t tokens = 0;  // scored
  Span all;
  std::vector<Span> spans;     // by position: later tokens see more of the cache
  double divergence_mean = 0;  // of the distribution from the 16-bit one, in nats
  double divergence_p99 = 0;
  double agreement = 0;                              // share of positions with the same likeliest token
  double noise_divergence = 0, noise_agreement = 1;  // the same of 32-bit floats
  size_t base_bytes_per_token = 0, bytes_per_token = 0;
  double base_step_ms = 0, step_ms = 0;  // of decode, at the end of a window

  // By how much perplexity grows: 0.01 is one percent.
  double loss() const { return all.perplexity() / all.perplexity_base() - 1; }

  enum class Verdict : uint8_t { same, small, noticeable, broken };
  Verdict verdict() const;
  std::string sentence() const;
};

// `progress` is told how many tokens are done.
KvMeterResult measure_kv(const EngineModel& model, std::span<const TokenId> tokens,
                         const KvMeterOptions& options, const std::function<void(size_t)>& progress = {});

}  // namespace quire
