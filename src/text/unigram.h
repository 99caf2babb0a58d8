#pragma once

#include <string_view>
#include <vector>

#include "text/byte_trie.h"
#include "text/marked_text.h"
#include "text/tokenizer_spec.h"
#include "text/vocabulary.h"

namespace quire {

// The cut of a piece into tokens whose scores have the greatest sum.
// Refers to the spec and the vocabulary, which must outlive it.
class Unigram {
 public:
  Unigram(const TokenizerSpec& spec, const Vocabulary& vocabulary);

  void encode(std::string_view piece, std::vector<TokenId>& out) const;

 private:
  void append_unknown(std::string_view text, std::vector<TokenId>& out) const;

  const TokenizerSpec* spec_;
  const Vocabulary* vocabulary_;
  ByteTrie trie_;
};

}  // namespace quire
