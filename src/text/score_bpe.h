#pragma once

#include <string_view>
#include <vector>

#include "text/tokenizer_spec.h"
#include "text/vocabulary.h"

namespace quire {

// SentencePiece's BPE: neighbours that together spell a token merge, the best score first, then the leftmost.
// Refers to the spec and the vocabulary, which must outlive it.
class ScoreBpe {
 public:
  ScoreBpe(const TokenizerSpec& spec, const Vocabulary& vocabulary);

  void encode(std::string_view piece, std::vector<TokenId>& out) const;

 private:
  void append_token(std::string_view text, std::vector<TokenId>& out) const;

  const TokenizerSpec* spec_;
  const Vocabulary* vocabulary_;
};

}  // namespace quire
