#pragma once

#include <string>
#include <string_view>
#include <unordered_map>
#include <variant>
#include <vector>

#include "text/added_tokens.h"
#include "text/bpe.h"
#include "text/normalizer.h"
#include "text/pretokenizer.h"
#include "text/score_bpe.h"
#include "text/token_decoder.h"
#include "text/tokenizer.h"
#include "text/tokenizer_spec.h"
#include "text/unigram.h"
#include "text/vocabulary.h"
#include "text/word_piece.h"

namespace quire {

using TokenizerModel = std::variant<Bpe, ScoreBpe, Unigram, WordPiece>;

// Everything a tokenizer needs at run time; shared by tokenizer.cc and detokenizer.cc.
// The members refer to `spec`: a State is made once, where it stays.
struct Tokenizer::State {
  explicit State(TokenizerSpec s);
  State(const State&) = delete;

  struct Added {
    bool special = false;
    std::string normalized;  // its text as the decoder sees it, where that is not the token's
  };

  const TokenizerSpec spec;
  const Vocabulary vocabulary;
  const Normalizer normalizer;
  const Pretokenizer pretokenizer;
  const TokenizerModel model;
  const TokenDecoder decoder;
  AddedTokenFinder raw_tokens;         // sought in the text as it is
  AddedTokenFinder normalized_tokens;  // sought in the normalized text
  std::unordered_map<TokenId, Added> added;

  // What the decoder is to see of a token; nothing if it is to be left out.
  std::optional<TokenDecoder::Piece> piece_of(TokenId id, Special special) const;

  void encode_text(std::string_view text, const EncodeOptions& options, std::vector<TokenId>& out) const;
  // `options.plain` counts from the beginning of the segment.
  void encode_segment(std::string_view segment, bool at_start, const EncodeOptions& options,
                      std::vector<TokenId>& out) const;
  // Throws TooManyTokens if what is in `out` and so many bytes of text, normalized, are more than `most` tokens.
  void check_count(const std::vector<TokenId>& out, size_t bytes, size_t most) const;
};

}  // namespace quire
