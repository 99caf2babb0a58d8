#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

#include "text/tokenizer_spec.h"
#include "text/vocabulary.h"

namespace quire {

// One piece of text to tokens, by merging neighbours in the order of the merge list.
// Refers to the spec and the vocabulary, which must outlive it.
class Bpe {
 public:
  Bpe(const TokenizerSpec& spec, const Vocabulary& vocabulary);

  void encode(std::string_view piece, std::vector<TokenId>& out) const;

 private:
  struct Rule {
    uint64_t pair = kNoPair;  // left << 32 | right
    uint32_t rank = 0;
    TokenId result = 0;
  };
  static constexpr uint64_t kNoPair = ~uint64_t(0);
  static constexpr char32_t kTableChars = 0x400;  // covers the alphabet of byte-level vocabularies

  struct Word;
  std::optional<TokenId> find_char(std::string_view piece, size_t begin, size_t end) const;
  void read_chars(std::string_view piece, Word& word) const;
  void merge(Word& word) const;
  const Rule* find_rule(TokenId left, TokenId right) const;

  const TokenizerSpec* spec_;
  const Vocabulary* vocabulary_;
  std::vector<Rule> rules_;                       // open addressing, a power of two
  std::vector<std::optional<TokenId>> char_ids_;  // of the first kTableChars characters
};

}  // namespace quire
