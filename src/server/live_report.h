#pragma once

#include "base/json.h"
#include "engine/engine.h"
#include "server/rate_meter.h"
#include "server/request_book.h"

namespace quire {

// What is told, and to whom.
struct ReportFor {
  Viewer viewer;
  uint64_t since = 0;  // events or steps from this one on
  Clock::time_point now;
};

// The KV cache as it is: every page that is not free, who holds it, and what happened. Of pages that are not the viewer's
// own only their place and whether they are held. Engine thread only, as the next.
OrderedJson kv_report(const Engine& engine, const RequestBook& book, const ReportFor& report);

// The requests and the steps; of requests that are not the viewer's own their number.
OrderedJson requests_report(const Engine& engine, const RequestBook& book, RateMeter& meter,
                            const ReportFor& report);

// How much of a prompt is cached, where it parts from what is, and when its first token would come if nobody else ran.
OrderedJson lookup_report(const Engine& engine, const SaltedTokens& prompt, const MachineLimits& limits,
                          const Tokenizer& tokenizer);

}  // namespace quire
