#pragma once

#include <functional>
#include <span>
#include <string_view>
#include <vector>

#include "engine/engine.h"

namespace quire {

// The tokens of a text, with the tokenizer's BOS (if it adds one) at the start of every part.
std::vector<TokenId> tokens_in_parts(const Tokenizer& tokenizer, std::string_view text, uint32_t part_tokens);

struct LossOptions {
  uint32_t part_tokens = 512;  // that are computed together, from an empty context
  uint32_t prefill_chunk = 512;
  KvFormats kv_formats = {};
};

// Calls `take` with the logits after every token that has a next one in its part, in order; `position` is the
// token's place in `tokens`. Parts follow each other without overlap.
void for_each_logits(const EngineModel& model, std::span<const TokenId> tokens, const LossOptions& options,
                     const std::function<void(size_t position, std::span<const float> logits)>& take);

// The negative log-likelihood, in nats, of every token of `tokens` but the first of each part. A
// part of one token has none. `progress` is told how many tokens are done.
std::vector<double> losses(const EngineModel& model, std::span<const TokenId> tokens,
                           const LossOptions& options, const std::function<void(size_t)>& progress = {});

}  // namespace quire
