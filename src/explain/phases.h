#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "engine/engine.h"

namespace quire {

// Some passes of a request taken together: those until the first token of the answer, or those after it.
struct PhaseFigures {
  double tokens = 0;  // computed
  double pairs = 0;
  StepCost cost;
  double seconds = 0;
  uint32_t passes = 0;
  uint32_t entries = 0;  // tokens whose keys and values are kept when it ends

  void add(const StepRecord& step);
};

struct PassTime {
  double begin_ms = 0;  // since the request was submitted
  double ms = 0;
  bool prefill = false;
};

// One request run in one way.
struct WayFigures {
  PhaseFigures prefill, decode;
  double predicted_seconds = 0;  // of decode: of the passes that were counted and not run
  std::vector<TokenId> tokens;   // of the answer, as far as it was run
  std::vector<PassTime> times;
  double ttft_ms = 0;

  double computed_tokens() const { return prefill.tokens + decode.tokens; }
  double between_tokens_ms() const { return decode.passes > 0 ? 1000 * decode.seconds / decode.passes : 0; }
  // Of the passes of the prompt: what everybody else would have to wait.
  double longest_prefill_ms() const;
};

struct WayOptions {
  double most_seconds = 0;  // of decode; then the rest is counted and not run. 0: to the end
  std::function<void(size_t answered)> progress = {};
};

// Runs a request alone, with or without the cache as `engine` says, and counts its passes. REQUIRES: request.max_tokens
// is given.
WayFigures run_way(const EngineModel& model, EngineOptions engine, const Request& request,
                   const WayOptions& options = {});

// Throws Error if one answer is not how the other begins: a bug, by the promise that they are the same.
void check_same_tokens(const WayFigures& a, const WayFigures& b, const char* what);

}  // namespace quire
