#pragma once

#include "base/json.h"
#include "engine/cache_view.h"
#include "server/rate_meter.h"
#include "server/request_book.h"

namespace quire {

// What is told, and to whom.
struct ReportFor {
  Viewer viewer;
  uint64_t since = 0;  // events or steps from this one on
  Clock::time_point now;
};

// What the engine's thread says of the cache and of the requests: bounded copies, nothing that grows with the text of an
// answer or needs a string for each page. The reports are made of it on other threads.
struct KvLook {
  CacheView cache;
  BookNames names;
};
struct RequestsLook {
  BookView book;
  Engine::Load load;
  uint64_t steps_total = 0, first_step = 0;
  std::vector<StepRecord> steps;
};
KvLook look_at_kv(const Engine& engine, const RequestBook& book, uint64_t since);
RequestsLook look_at_requests(const Engine& engine, const RequestBook& book, uint64_t since);

// The KV cache as it was: every page that was not free, who held it, and what happened. Of pages that are not the viewer's
// own only their place and whether they were held.
OrderedJson kv_report(const KvLook& look, const ReportFor& report);

// The requests and the steps; of requests that are not the viewer's own their number.
OrderedJson requests_report(const RequestsLook& look, RateMeter& meter, const ReportFor& report);

// How much of a prompt is cached, where it parts from what is, and when its first token would come if nobody else ran.
OrderedJson lookup_report(const LookupView& look, std::span<const TokenId> prompt,
                          const MachineLimits& limits, const Tokenizer& tokenizer);

}  // namespace quire
