#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "engine/engine.h"
#include "engine/model_text.h"
#include "replay/recording.h"

namespace quire {

// A recorded answer beside the one that came when its request ran again, alone.
struct ReplayOutcome {
  struct Difference {
    size_t at = 0;                        // of the answer's tokens
    std::optional<TokenId> given, drawn;  // nothing: that answer had ended
    float given_logprob = 0, drawn_logprob = 0;
  };
  std::optional<Difference> token;    // the first that is another
  std::optional<Difference> logprob;  // the first of the same token that has other bits, before that
  double largest_logprob_change = 0;  // over the tokens before that
  std::vector<TokenId> tokens;        // as they came now
  std::string refused;                // why it could not be run; empty: it was

  bool same() const { return refused.empty() && !token && !logprob; }
};

// What an engine must have room for to run all of these, one at a time.
uint32_t longest_of(const std::vector<RecordedAnswer>& answers);
// The options of such an engine: one sequence, nothing shared, so that every row is computed anew.
EngineOptions replay_options(EngineOptions options, const KvLayout& layout, uint32_t longest);

// `text`: of the model; needed for an answer that kept to a grammar.
ReplayOutcome replay(Engine& engine, const RecordedAnswer& recorded, const ModelText* text = nullptr);
// The same without an engine: of answers that are there already.
ReplayOutcome compare_answers(const RecordedAnswer& recorded, const Answer& now);

}  // namespace quire
