#include "text/word_piece.h"

#include <algorithm>

#include "base/error.h"
#include "text/utf8.h"

namespace quire {

WordPiece::WordPiece(const TokenizerSpec& spec, const Vocabulary& vocabulary) : spec_(&spec) {
  std::vector<std::pair<std::string_view, TokenId>> beginnings, continuations;
  for (TokenId id = 0; id < vocabulary.size(); ++id) {
    const std::string_view text = vocabulary[id].text;
    if (vocabulary.find_plain(text) != id) continue;
    beginnings.emplace_back(text, id);
    if (text.starts_with(spec.continuing_prefix))
      continuations.emplace_back(text.substr(spec.continuing_prefix.size()), id);
  }
  beginnings_ = ByteTrie(std::move(beginnings));
  continuations_ = ByteTrie(std::move(continuations));
}

void WordPiece::encode(std::string_view piece, std::vector<TokenId>& out) const {
  const size_t before = out.size();
  const auto give_up = [&] {
    if (!spec_->unknown) throw Error("the tokenizer has no token for '{}' and no unknown token", piece);
    out.resize(before);
    out.push_back(*spec_->unknown);
  };
  const auto is_lead = [](char byte) { return (byte & 0xC0) != 0x80; };
  const auto chars = std::count_if(piece.begin(), piece.end(), is_lead);
  if (size_t(chars) > spec_->max_word_chars) return give_up();
  for (size_t begin = 0; begin < piece.size();) {
    size_t end = begin;
    std::optional<TokenId> id;
    const ByteTrie& trie = begin > 0 ? continuations_ : beginnings_;
    trie.prefixes(piece.substr(begin), [&](size_t bytes, TokenId longest) {
      end = begin + bytes;
      id = longest;
    });
    if (!id) return give_up();
    out.push_back(*id);
    begin = end;
  }
}

}  // namespace quire
