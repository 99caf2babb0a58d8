#include "text/word_piece.h"

#include <algorithm>

#include "base/error.h"
#include "text/utf8.h"

namespace quire {

WordPiece::WordPiece(const TokenizerSpec& spec, const Vocabulary& vocabulary)
    : spec_(&spec), vocabulary_(&vocabulary) {}

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
    size_t end = piece.size();
    std::optional<TokenId> id;
    while (end > begin) {
      std::string text = begin > 0 ? spec_->continuing_prefix : std::string();
      id = vocabulary_->find_plain(text.append(piece.substr(begin, end - begin)));
      if (id) break;
      do --end;
      while (end > begin && !is_lead(piece[end]));
    }
    if (!id) return give_up();
    out.push_back(*id);
    begin = end;
  }
}

}  // namespace quire
