#pragma once

#include "base/json.h"
#include "engine/engine.h"
#include "server/rate_meter.h"
#include "server/request_book.h"

namespace quire {

// The KV cache as it is: every page that is not free, who holds it, and what happened from the `since`th event on.
// Engine thread only, as the next.
OrderedJson kv_report(const Engine& engine, const RequestBook& book, uint64_t since, Clock::time_point now);

// The requests and the steps from the `since`th on.
OrderedJson requests_report(const Engine& engine, const RequestBook& book, RateMeter& meter, uint64_t since,
                            Clock::time_point now);

// How much of a prompt is cached, where it parts from what is, and when its first token would come if nobody else ran.
OrderedJson lookup_report(const Engine& engine, std::span<const TokenId> prompt, const MachineLimits& limits,
                          const Tokenizer& tokenizer);

}  // namespace quire
