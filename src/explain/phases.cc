#include "explain/phases.h"

#include <algorithm>

#include "base/check.h"
#include "base/error.h"

namespace quire {
namespace {

// The passes that were not run are counted as if they had been, and take as long as their operations did so far. Only a
// request without the cache is cut short, so each of them computes all that is known.
void predict_rest(const EngineModel& model, const KvLayout& layout, const Request& request, WayFigures& way) {
  const CostModel costs(*model.weights, *model.backend);
  const double seconds_per_op = way.decode.seconds / way.decode.cost.ops();
  for (uint32_t answered = uint32_t(way.tokens.size()); answered < request.max_tokens; ++answered) {
    const uint32_t tokens = uint32_t(request.prompt.size()) + answered;
    StepRecord step;
    step.prompt_tokens = tokens;
    step.cost = costs.step({.sequences = 1, .tokens = tokens, .depth = 0, .logit_rows = 1}, layout);
    step.attention_pairs = double(tokens) * (tokens + 1) / 2;
    step.ms = 1000 * seconds_per_op * step.cost.ops();
    way.times.push_back({way.times.back().begin_ms + way.times.back().ms, step.ms, false});
    way.predicted_seconds += step.ms / 1000;
    way.decode.add(step);
  }
}

}  // namespace

void PhaseFigures::add(const StepRecord& step) {
  tokens += step.prompt_tokens + step.stream_tokens + step.draft_tokens;
  pairs += step.attention_pairs;
  cost += step.cost;
  seconds += step.ms / 1000;
  ++passes;
}

double WayFigures::longest_prefill_ms() const {
  double longest = 0;
  for (const PassTime& pass : times) {
    if (pass.prefill) longest = std::max(longest, pass.ms);
  }
  return longest;
}

WayFigures run_way(const EngineModel& model, EngineOptions options, const Request& request,
                   const WayOptions& way_options) {
  CHECK(request.max_tokens > 0);
  options.context = uint32_t(request.prompt.size()) + request.max_tokens;
  Engine engine(model, options);
  WayFigures way;
  const Clock::time_point begin = Clock::now();
  Request asked = request;
  SequenceId id;
  uint32_t entries = 0;  // when the last token was drawn; its own are not among them
  asked.on_token = [&](const TokenEvent&) { entries = engine.sequence(id)->computed(); };
  id = engine.submit(asked);
  uint64_t seen = 0;
  while (true) {
    engine.step();
    const std::optional<Answer> answer = engine.take_answer(id);
    const std::optional<SequenceView> sequence = engine.sequence(id);
    const size_t answered = answer ? answer->tokens.size() : sequence->answer_tokens();
    for (const StepRecord& step : engine.steps().since(seen)) {
      const bool first = way.ttft_ms == 0;
      PhaseFigures& phase = first ? way.prefill : way.decode;
      phase.add(step);
      phase.entries = options.kv_cache ? entries : 0;
      way.times.push_back({milliseconds_between(begin, step.begin), step.ms, first});
    }
    seen = engine.steps().total();
    if (way.ttft_ms == 0 && answered > 0) way.ttft_ms = milliseconds_between(begin, Clock::now());
    if (way_options.progress) way_options.progress(answered);
    if (answer) {
      way.tokens = answer->tokens;
      return way;
    }
    if (!options.kv_cache && way_options.most_seconds > 0 && way.decode.seconds > way_options.most_seconds) {
      way.tokens.assign(sequence->tokens().begin() + ptrdiff_t(request.prompt.size()),
                        sequence->tokens().end());
      engine.cancel(id);
      predict_rest(model, engine.kv().layout(), request, way);
      return way;
    }
  }
}

void check_same_tokens(const WayFigures& a, const WayFigures& b, const char* what) {
  const size_t common = std::min(a.tokens.size(), b.tokens.size());
  if (!std::equal(a.tokens.begin(), a.tokens.begin() + ptrdiff_t(common), b.tokens.begin()))
    throw Error("{} gave other tokens: this is a bug of quire", what);
}

}  // namespace quire
