#include "text/score_bpe.h"

#include <algorithm>
#include <queue>

#include "text/utf8.h"

namespace quire {
namespace {

constexpr uint32_t kEnd = ~uint32_t(0);

struct Symbol {
  uint32_t begin;
  uint32_t bytes;  // 0: merged into the one before
  uint32_t previous;
  uint32_t next;
};

struct Candidate {
  double score;
  uint32_t left;
  uint32_t right;
  uint32_t bytes;
  bool operator<(const Candidate& other) const {
    return score != other.score ? score < other.score : left > other.left;
  }
};

std::vector<Symbol> split_chars(std::string_view piece) {
  std::vector<Symbol> symbols;
  for (size_t at = 0; at < piece.size();) {
    const uint32_t bytes = utf8_length(piece[at]);
    const auto index = uint32_t(symbols.size());
    if (index > 0) symbols.back().next = index;
    symbols.push_back({uint32_t(at), bytes, index > 0 ? index - 1 : kEnd, kEnd});
    at += bytes;
  }
  return symbols;
}

}  // namespace

ScoreBpe::ScoreBpe(const TokenizerSpec& spec, const Vocabulary& vocabulary)
    : spec_(&spec), vocabulary_(&vocabulary) {}

void ScoreBpe::encode(std::string_view piece, std::vector<TokenId>& out) const {
  std::vector<Symbol> symbols = split_chars(piece);
  std::priority_queue<Candidate> queue;
  const auto consider = [&](uint32_t left, uint32_t right) {
    if (left == kEnd || right == kEnd) return;
    const uint32_t bytes = symbols[left].bytes + symbols[right].bytes;
    const auto id = vocabulary_->find_plain(piece.substr(symbols[left].begin, bytes));
    if (id) queue.push({(*vocabulary_)[*id].score, left, right, bytes});
  };
  for (uint32_t i = 1; i < symbols.size(); ++i) consider(i - 1, i);
  while (!queue.empty()) {
    const Candidate best = queue.top();
    queue.pop();
    Symbol& left = symbols[best.left];
    Symbol& right = symbols[best.right];
    if (left.bytes == 0 || right.bytes == 0 || left.bytes + right.bytes != best.bytes) continue;
    left.bytes += right.bytes;
    right.bytes = 0;
    left.next = right.next;
    if (left.next != kEnd) symbols[left.next].previous = best.left;
    consider(left.previous, best.left);
    consider(best.left, left.next);
  }
  for (const Symbol& symbol : symbols) {
    if (symbol.bytes > 0) append_token(piece.substr(symbol.begin, symbol.bytes), out);
  }
}

void ScoreBpe::append_token(std::string_view text, std::vector<TokenId>& out) const {
  if (const auto id = vocabulary_->find_plain(text)) {
    out.push_back(*id);
    return;
  }
  for (const char byte : text) {
    if (const auto id = vocabulary_->byte_token(static_cast<unsigned char>(byte))) {
      out.push_back(*id);
    } else if (const auto raw = vocabulary_->find_plain(std::string_view(&byte, 1))) {
      out.push_back(*raw);
    } else if (spec_->unknown) {
      out.push_back(*spec_->unknown);
    }
  }
}

}  // namespace quire
