#include "engine/sequence.h"

#include <algorithm>
#include <utility>

namespace quire {

Sequence::Sequence(SequenceId id, Request ask, PageTable table, const Tokenizer* tokenizer,
                   Clock::time_point now)
    : id(id),
      request(std::move(ask)),
      tokens(request.prompt),
      table(std::move(table)),
      stop(request.stop),
      submitted(now) {
  for (TokenId token : tokens) seen.emplace(token, 0);
  if (tokenizer != nullptr) detokenizer.emplace(*tokenizer);
  answer.prompt_tokens = uint32_t(tokens.size());
  if (request.watch) rows_told = request.watch->first;
}

bool Sequence::can_go_ahead() const {
  if (ahead == 0) return true;
  // What it draws next depends on the token before, or it is not known how many tokens there will be.
  return drafts.empty() && !request.sampling.has_penalties() && !scorer && !request.watch &&
         (request.max_tokens == 0 || answer_tokens() + drawing < request.max_tokens);
}

void Sequence::append(TokenId token) {
  tokens.push_back(token);
  ++seen[token];
}

const ScoringPass* Sequence::due_pass() {
  if (!at_pruning()) return nullptr;
  if (!pass) pass = scorer->pass(pass_index, tokens);
  return pass ? &*pass : nullptr;
}

SaltedTokens Sequence::findable() const {
  const SaltedTokens all(tokens, request.salt);
  if (request.watch) return all.first(std::min<size_t>(size_t(rows_told) + 1, tokens.size()));
  if (!scorer) return all;
  if (scorer->chooses_before_prefill()) return all.first(0);
  const uint32_t cacheable = scorer->tokens() - std::min(scorer->tokens(), scorer->observed_tokens());
  return all.first(std::min<size_t>(cacheable + 1, tokens.size()));
}

}  // namespace quire
