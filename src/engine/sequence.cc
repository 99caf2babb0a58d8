#include "engine/sequence.h"

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
}

void Sequence::append(TokenId token) {
  tokens.push_back(token);
  ++seen[token];
}

}  // namespace quire
