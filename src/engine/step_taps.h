#pragma once

#include <vector>

#include "engine/sequence.h"
#include "runner/runner.h"

namespace quire {

// What sequences want to know of the tokens that one step computes for them: those who prune their prompts, and those who
// watch a head.
class StepTaps {
 public:
  // The run of the input that computes tokens of the sequence.
  void ask(Sequence& sequence, const TokenRun& run, StepInput& input);
  // The same of a pass, whose first token has `row`; the scorer sees those from `first_seen` on.
  void ask(TokenScorer& scorer, const TokenRun& run, uint32_t row, uint32_t first_seen, StepInput& input);
  bool empty() const { return scored_.empty() && watched_.empty(); }
  // Gives everybody what it asked for. REQUIRES: all of them are still there.
  void tell(const StepOutput& output);

 private:
  struct Scored {
    TokenScorer* scorer;
    size_t at, count;  // among the step's values
  };
  struct Watched {
    Sequence* sequence;
    uint32_t position;
    size_t at;
  };
  void ask_head(Sequence& sequence, const TokenRun& run, StepInput& input);

  std::vector<Scored> scored_;
  std::vector<Watched> watched_;
};

}  // namespace quire
