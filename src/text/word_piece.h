#pragma once

#include <string_view>
#include <vector>

#include "text/byte_trie.h"
#include "text/tokenizer_spec.h"
#include "text/vocabulary.h"

namespace quire {

// The longest token a word starts with, then the longest that continues it, and so on; a word that cannot be
// finished is one unknown token. Refers to the spec, which must outlive it.
class WordPiece {
 public:
  WordPiece(const TokenizerSpec& spec, const Vocabulary& vocabulary);

  void encode(std::string_view piece, std::vector<TokenId>& out) const;

 private:
  const TokenizerSpec* spec_;
  ByteTrie beginnings_, continuations_;
};

}  // namespace quire
