#pragma once

#include <string>
#include <vector>

#include "base/json.h"
#include "engine/request.h"
#include "text/tokenizer.h"

namespace quire {

// What the passes of one request were fed, added to the cache and drew, as `quire explain --view steps` shows it. Bounded: of
// a long answer the last passes, of a long chunk the first tokens.
struct RequestSteps {
  static constexpr size_t kMostPasses = 256;
  static constexpr size_t kMostFed = 32;
  static constexpr size_t kMostRivals = 4;

  struct Drawn {
    TokenId token = 0;
    std::optional<float> logprob;      // if it was asked for
    std::vector<TokenLogprob> rivals;  // the same; the likeliest others
  };
  struct Pass {
    bool prefill = false;
    double at_ms = 0;          // on the server's clock; of decode when its token came
    double ms = 0;             // of decode since the token before
    uint32_t tokens = 0;       // fed
    std::vector<TokenId> fed;  // the first of them, where it is known which they were
    uint32_t entries_before = 0, entries_after = 0;
    std::vector<Drawn> drawn;  // several where guesses were right
  };

  uint32_t prompt_tokens = 0, cached_tokens = 0, pruned_tokens = 0;
  size_t skipped = 0;  // passes before the first that is told
  std::vector<Pass> passes;
};

// What is known of a request.
struct RequestRecord {
  CacheSalt salt;
  double submitted_ms = 0;  // on the server's clock
  const std::vector<TokenId>& prompt;
  const Answer& answer;          // so far
  std::vector<double> token_ms;  // since it came
  const std::vector<std::vector<TokenLogprob>>& rivals;
};
RequestSteps steps_of(const RequestRecord& record);
RequestSteps all_steps_of(const RequestRecord& record);  // with every pass, however many

OrderedJson steps_json(const std::string& id, const RequestSteps& steps, const Tokenizer& tokenizer);

}  // namespace quire
