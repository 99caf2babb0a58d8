#include "explain/passes.h"

#include <algorithm>
#include <cmath>

#include "base/check.h"

namespace quire {

PassTrace trace_passes(const EngineModel& model, EngineOptions options, const Request& request,
                       uint32_t rivals) {
  CHECK(request.max_tokens > 0);
  options.kv_cache = true;
  options.context = uint32_t(request.prompt.size()) + request.max_tokens;
  Engine engine(model, options);
  PassTrace trace;
  trace.prompt_tokens = uint32_t(request.prompt.size());
  std::vector<TokenId> known = request.prompt;
  Pass pass;
  SequenceId id;
  Request asked = request;
  asked.logprobs = true;
  asked.top_logprobs = rivals + 1;  // the token itself may be among them
  asked.on_token = [&](const TokenEvent& event) {
    // A sequence that has finished is gone after the step: this is the last moment to ask it.
    pass.entries_after = engine.sequence(id)->computed();
    Pass::Draw draw{event.token, std::exp(double(event.logprob)), {}};
    for (const TokenLogprob& top : event.top_logprobs) {
      if (top.token != event.token && draw.rivals.size() < rivals) draw.rivals.push_back(top);
    }
    pass.drawn = draw;
  };
  id = engine.submit(asked);
  std::optional<Answer> answer;
  while (!answer) {
    pass = {};
    pass.entries_before = pass.begin = engine.sequence(id)->computed();
    CHECK(engine.step());
    answer = engine.take_answer(id);
    if (!answer) pass.entries_after = engine.sequence(id)->computed();
    pass.ms = engine.steps().since(engine.steps().total() - 1).front().ms;
    pass.fed.assign(known.begin() + pass.begin, known.begin() + pass.entries_after);
    if (pass.drawn) known.push_back(pass.drawn->token);
    trace.passes.push_back(pass);
  }
  trace.answer = answer->tokens;
  trace.finish_reason = answer->finish_reason;
  return trace;
}

}  // namespace quire
