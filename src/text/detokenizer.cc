#include "text/detokenizer.h"

#include "text/tokenizer_state.h"

namespace quire {

Detokenizer::Detokenizer(const Tokenizer& tokenizer, Tokenizer::Special special)
    : tokenizer_(&tokenizer), special_(special), stream_(tokenizer.state_->decoder.start()) {}

std::string Detokenizer::push(TokenId token) {
  return push(token, special_);
}

std::string Detokenizer::push(TokenId token, Tokenizer::Special special) {
  auto piece = tokenizer_->state_->piece_of(token, special);
  return piece ? stream_.push(std::move(*piece)) : std::string();
}

std::string Detokenizer::finish() {
  std::string rest = stream_.finish();
  stream_ = tokenizer_->state_->decoder.start();
  return rest;
}

}  // namespace quire
