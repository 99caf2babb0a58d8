#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "engine/request.h"
#include "grammar/grammar.h"

namespace quire {

// What a grammar lets an answer say next, for the draws that are planned. It depends on the answer's tokens alone: not on how they
// were computed or guessed. Engine thread only.
class AnswerConstraint {
 public:
  // `end_tokens` are allowed where the text may end. Throws Error if no token of the model can begin it.
  AnswerConstraint(std::shared_ptr<grammar::Grammar> grammar, std::vector<TokenId> end_tokens,
                   uint32_t vocab);

  // The tokens that may be drawn after the first `draft` of the drafts that were shaped last; of others: empty.
  std::span<const uint32_t> allowed(uint32_t draft) const;
  // Drafts of what comes next, at most so many: where there is no choice what must come, else those given, up to the first that is
  // not allowed.
  void shape(std::vector<TokenId>& drafts, uint32_t most);
  // Goes on by a token that was drawn and ends nothing. Says whether the answer ends with it: since nothing else may follow, or
  // since nothing can (`problem` says why).
  FinishReason add(TokenId token);
  const std::string& problem() const { return problem_; }

 private:
  // What may be drawn where the constraint is now; false: nothing.
  bool look(std::vector<uint32_t>& mask);

  grammar::Constraint constraint_;
  std::vector<TokenId> end_tokens_;
  uint32_t vocab_;
  size_t tokens_ = 0;                         // of the answer, without drafts
  std::vector<std::vector<uint32_t>> masks_;  // now, and after each draft
  std::string problem_;
};

}  // namespace quire
