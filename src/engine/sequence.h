#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <vector>

#include "base/clock.h"
#include "engine/request.h"
#include "engine/stop_matcher.h"
#include "kv/page_table.h"
#include "text/detokenizer.h"

namespace quire {

// One timeline of tokens: what is known, what is computed, where its keys and values are. Engine thread only.
struct Sequence {
  Sequence(SequenceId id, Request request, PageTable table, const Tokenizer* tokenizer,
           Clock::time_point now);

  // Tokens that are known and not computed. No phases: prefill is a large backlog, decode a backlog of one.
  uint32_t backlog() const { return uint32_t(tokens.size()) - computed; }
  uint32_t answer_tokens() const { return uint32_t(tokens.size() - request.prompt.size()); }
  bool finished() const { return answer.finish_reason != FinishReason::none; }

  void append(TokenId token);  // and counts it for the penalties

  SequenceId id;
  Request request;
  std::vector<TokenId> tokens;  // the prompt, then the answer
  uint32_t computed = 0;        // tokens whose keys and values are in pages
  PageTable table;
  std::vector<TokenId> drafts;       // guesses at what comes next, for the coming step
  std::map<TokenId, uint32_t> seen;  // token -> how often in the answer; 0: in the prompt only
  std::optional<Detokenizer> detokenizer;
  StopMatcher stop;
  Answer answer;

  bool running = false;
  std::optional<SequenceId>
      lead;  // the first of several answers to one prompt, which computes the prompt for all
  uint64_t waiting_since = 0;  // the step

  Clock::time_point submitted;
  bool started = false;  // some token of it was computed
  std::vector<Clock::time_point> token_times;
  GapCause gap_cause = GapCause::none;  // the worst since its last token
};

}  // namespace quire
