#pragma once

#include <string>

#include "text/token_decoder.h"
#include "text/tokenizer.h"

namespace quire {

// Tokens to text as they come. What it has emitted so far is always valid UTF-8, and the pieces joined
// together are the same as Tokenizer::decode of all the tokens (with broken bytes as U+FFFD).
// The tokenizer must outlive it.
class Detokenizer {
 public:
  explicit Detokenizer(const Tokenizer& tokenizer, Tokenizer::Special special = Tokenizer::Special::skip);

  std::string push(TokenId token);                              // what can be said now; may be empty
  std::string push(TokenId token, Tokenizer::Special special);  // with a rule of its own for this one
  std::string finish();                                         // what was held back; then it starts anew

 private:
  const Tokenizer* tokenizer_;
  Tokenizer::Special special_;
  TokenDecoder::Stream stream_;
};

}  // namespace quire
