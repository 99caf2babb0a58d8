#include "text/unigram.h"

#include <algorithm>

#include "base/error.h"
#include "text/utf8.h"

namespace quire {
namespace {

constexpr uint32_t kNotReached = ~uint32_t(0);

// The best way to reach a byte of the piece.
struct Arrival {
  double score = 0;
  uint32_t begin = kNotReached;  // where its last token starts
  TokenId id = 0;
};

ByteTrie plain_tokens(const Vocabulary& vocabulary) {
  std::vector<std::pair<std::string_view, TokenId>> entries;
  entries.reserve(vocabulary.size());
  for (size_t id = vocabulary.size(); id-- > 0;) {  // of tokens spelled alike the last counts
    if (vocabulary.is_plain(TokenId(id))) entries.emplace_back(vocabulary[TokenId(id)].text, TokenId(id));
  }
  return ByteTrie(std::move(entries));
}

}  // namespace

Unigram::Unigram(const TokenizerSpec& spec, const Vocabulary& vocabulary)
    : spec_(&spec), vocabulary_(&vocabulary), trie_(plain_tokens(vocabulary)) {}

void Unigram::encode(std::string_view piece, std::vector<TokenId>& out) const {
  std::vector<Arrival> best(piece.size() + 1);
  best[0].begin = 0;
  const auto offer = [&](size_t begin, size_t end, double score, TokenId id) {
    const double sum = best[begin].score + score;
    Arrival& arrival = best[end];
    if (arrival.begin == kNotReached || sum > arrival.score) arrival = {sum, uint32_t(begin), id};
  };
  for (size_t at = 0; at < piece.size();) {
    const uint32_t char_bytes = utf8_length(piece[at]);
    bool has_char = false;
    trie_.prefixes(piece.substr(at), [&](size_t length, TokenId id) {
      offer(at, at + length, (*vocabulary_)[id].score, id);
      has_char |= length == char_bytes;
    });
    if (!has_char) {
      if (!spec_->unknown) {
        throw Error("the tokenizer has no token for '{}' and no unknown token", piece.substr(at, char_bytes));
      }
      offer(at, at + char_bytes, spec_->unknown_score, *spec_->unknown);
    }
    at += char_bytes;
  }

  std::vector<ByteRange> parts;
  for (size_t end = piece.size(); end > 0; end = best[end].begin) parts.push_back({best[end].begin, end});
  std::reverse(parts.begin(), parts.end());
  for (size_t i = 0; i < parts.size();) {
    const TokenId id = best[parts[i].end].id;
    if (id != spec_->unknown) {
      out.push_back(id);
      ++i;
      continue;
    }
    const size_t begin = parts[i].begin;
    size_t end = begin;
    for (; i < parts.size() && best[parts[i].end].id == spec_->unknown; ++i) end = parts[i].end;
    append_unknown(piece.substr(begin, end - begin), out);
  }
}

void Unigram::append_unknown(std::string_view text, std::vector<TokenId>& out) const {
  if (const auto id = vocabulary_->find_plain(text)) {
    out.push_back(*id);
    return;
  }
  const auto byte_token = [&](char byte) {
    return vocabulary_->byte_token(static_cast<unsigned char>(byte));
  };
  if (spec_->byte_fallback &&
      std::all_of(text.begin(), text.end(), [&](char byte) { return byte_token(byte).has_value(); })) {
    for (const char byte : text) out.push_back(*byte_token(byte));
    return;
  }
  out.push_back(*spec_->unknown);
}

}  // namespace quire
