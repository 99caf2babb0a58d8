#pragma once

#include <functional>
#include <span>
#include <vector>

#include "engine/engine.h"

namespace quire {

struct ScoreOptions {
  uint32_t window = 512;  // tokens that are scored together, from an empty context
  uint32_t prefill_chunk = 512;
  KvFormats kv_formats = {};
};

// Calls `take` with the logits after every token that has a next one in its window, in order; `position` is the
// token's place in `tokens`. Windows follow each other without overlap.
void for_each_logits(const EngineModel& model, std::span<const TokenId> tokens, const ScoreOptions& options,
                     const std::function<void(size_t position, std::span<const float> logits)>& take);

// The negative log-likelihood, in nats, of every token of `tokens` but the first of each window. A
// window of one token scores nothing. `progress` is told how many tokens are done.
std::vector<double> score(const EngineModel& model, std::span<const TokenId> tokens,
                          const ScoreOptions& options, const std::function<void(size_t)>& progress = {});

}  // namespace quire
