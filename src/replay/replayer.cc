#include "replay/replayer.h"

#include <algorithm>
#include <bit>
#include <cmath>

#include "base/error.h"

namespace quire {
namespace {

// One that was stopped may not go on; where it should have stopped one token more tells. Others end where they were cut.
uint32_t tokens_to_ask_for(const RecordedAnswer& recorded) {
  const auto given = uint32_t(recorded.tokens.size());
  const bool stopped = recorded.finish_reason == FinishReason::stop;
  const uint32_t most = recorded.request.max_tokens;
  if (!stopped || (most > 0 && given >= most)) return given;
  return given + 1;
}

bool same_bits(float a, float b) {
  return std::bit_cast<uint32_t>(a) == std::bit_cast<uint32_t>(b);
}

}  // namespace

uint32_t longest_of(const std::vector<RecordedAnswer>& answers) {
  size_t longest = 2;
  for (const RecordedAnswer& answer : answers)
    longest = std::max(longest, answer.request.prompt.size() + answer.tokens.size() + 1);
  return uint32_t(std::min<size_t>(longest, UINT32_MAX));
}

EngineOptions replay_options(EngineOptions options, const KvLayout& layout, uint32_t longest) {
  options.max_sequences = 1;
  options.sharing = false;
  const uint32_t tokens = std::min(longest, options.context);
  // Prompts that are pruned are read again behind themselves: twice as many rows.
  options.kv_bytes =
      kv_bytes(layout, pages_for(layout, std::min(options.context, 2 * tokens + options.prefill_chunk),
                                 std::min(options.prefill_chunk, options.context), 1));
  return options;
}

ReplayOutcome compare_answers(const RecordedAnswer& recorded, const Answer& now) {
  ReplayOutcome outcome;
  outcome.tokens = now.tokens;
  const size_t given = recorded.tokens.size(), drawn = now.tokens.size();
  for (size_t i = 0; i < std::max(given, drawn); ++i) {
    ReplayOutcome::Difference here{.at = i, .given = {}, .drawn = {}};
    if (i < given) {
      here.given = recorded.tokens[i];
      here.given_logprob = recorded.logprobs[i];
    }
    if (i < drawn) {
      here.drawn = now.tokens[i];
      here.drawn_logprob = now.logprobs[i];
    }
    if (here.given != here.drawn) {
      outcome.token = here;
      break;
    }
    if (same_bits(here.given_logprob, here.drawn_logprob)) continue;
    if (!outcome.logprob) outcome.logprob = here;
    const double change = std::abs(double(here.given_logprob) - double(here.drawn_logprob));
    outcome.largest_logprob_change = std::max(outcome.largest_logprob_change, change);
  }
  return outcome;
}

ReplayOutcome replay(Engine& engine, const RecordedAnswer& recorded, const ModelText* text) {
  Request request = recorded.request;
  request.max_tokens = tokens_to_ask_for(recorded);
  request.logprobs = true;
  try {
    if (recorded.tokens.empty()) throw Error("no token of its answer was recorded");
    if (recorded.grammar) {
      if (text == nullptr)
        throw Error("its answer kept to a grammar, and there is no tokenizer to read that with");
      request.grammar = text->compile_grammar(*recorded.grammar);
    }
    return compare_answers(recorded, engine.run(std::move(request)));
  } catch (const Error& error) {
    ReplayOutcome outcome;
    outcome.refused = error.what();
    return outcome;
  }
}

}  // namespace quire
