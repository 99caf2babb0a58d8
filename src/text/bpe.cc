#include "text/bpe.h"

#include <algorithm>
#include <bit>

#include "text/utf8.h"

namespace quire {
namespace {

uint64_t pair_of(TokenId left, TokenId right) {
  return uint64_t(left) << 32 | right;
}

size_t mix(uint64_t pair) {
  pair *= 0x9E3779B97F4A7C15u;
  return size_t(pair ^ pair >> 32);
}

}  // namespace

// The tokens of a piece as a list whose items can be taken out.
struct Bpe::Word {
  static constexpr uint32_t kEnd = ~uint32_t(0);
  static constexpr TokenId kWall = ~TokenId(0) - 1;  // no token: what is on its sides does not meet
  struct Symbol {
    TokenId id;
    uint32_t previous;
    uint32_t next;
    bool gone;
  };
  struct Candidate {
    uint32_t rank;
    uint32_t left;
    TokenId result;
    bool operator<(const Candidate& other) const {  // the heap's top is the lowest rank, then the leftmost
      return rank != other.rank ? rank > other.rank : left > other.left;
    }
  };
  std::vector<Symbol> symbols;
  std::vector<Candidate> candidates;

  void clear() {
    symbols.clear();
    candidates.clear();
  }
  void add(TokenId id) {
    const auto index = uint32_t(symbols.size());
    if (index > 0) symbols.back().next = index;
    symbols.push_back({id, index > 0 ? index - 1 : kEnd, kEnd, false});
  }
};

Bpe::Bpe(const TokenizerSpec& spec, const Vocabulary& vocabulary)
    : spec_(&spec),
      vocabulary_(&vocabulary),
      rules_(std::bit_ceil(spec.merges.size() * 2 + 1)),
      char_ids_(kTableChars) {
  for (size_t rank = 0; rank < spec.merges.size(); ++rank) {
    const Merge& merge = spec.merges[rank];
    if (!vocabulary.is_plain(merge.result)) continue;
    const uint64_t pair = pair_of(merge.left, merge.right);
    size_t slot = mix(pair) & (rules_.size() - 1);
    while (rules_[slot].pair != kNoPair) slot = (slot + 1) & (rules_.size() - 1);
    rules_[slot] = {pair, uint32_t(rank), merge.result};
  }
  for (char32_t c = 0; c < kTableChars; ++c) {
    std::string text;
    append_utf8(text, c);
    char_ids_[c] = vocabulary.find_plain(text);
  }
}

const Bpe::Rule* Bpe::find_rule(TokenId left, TokenId right) const {
  const uint64_t pair = pair_of(left, right);
  size_t slot = mix(pair) & (rules_.size() - 1);
  while (rules_[slot].pair != pair) {
    if (rules_[slot].pair == kNoPair) return nullptr;
    slot = (slot + 1) & (rules_.size() - 1);
  }
  return &rules_[slot];
}

std::optional<TokenId> Bpe::find_char(std::string_view piece, size_t begin, size_t end) const {
  const std::string_view text = piece.substr(begin, end - begin);
  const bool prefixed = begin > 0 && !spec_->continuing_prefix.empty();
  const bool suffixed = end == piece.size() && !spec_->word_suffix.empty();
  if (prefixed || suffixed) {
    std::string spelled = prefixed ? spec_->continuing_prefix : std::string();
    spelled += text;
    if (suffixed) spelled += spec_->word_suffix;
    return vocabulary_->find_plain(spelled);
  }
  const char32_t c = code_point_at(text, 0).value;
  return c < kTableChars ? char_ids_[c] : vocabulary_->find_plain(text);
}

void Bpe::read_chars(std::string_view piece, Word& word) const {
  bool unknown_pending = false;
  for (size_t begin = 0; begin < piece.size();) {
    const size_t end = begin + utf8_length(piece[begin]);
    const std::string_view text = piece.substr(begin, end - begin);
    const auto id = find_char(piece, begin, end);
    begin = end;
    if (id) {
      if (unknown_pending) word.add(*spec_->unknown);
      unknown_pending = false;
      word.add(*id);
      continue;
    }
    if (spec_->byte_fallback && std::all_of(text.begin(), text.end(), [&](char byte) {
          return vocabulary_->byte_token(static_cast<unsigned char>(byte)).has_value();
        })) {
      for (const char byte : text) word.add(*vocabulary_->byte_token(static_cast<unsigned char>(byte)));
      continue;
    }
    if (!spec_->unknown) {  // no token for it, no token at all
      if (spec_->unknown_separates) word.add(Word::kWall);
      continue;
    }
    if (unknown_pending && !spec_->fuse_unknown) word.add(*spec_->unknown);
    unknown_pending = true;
  }
  if (unknown_pending) word.add(*spec_->unknown);
}

void Bpe::merge(Word& word) const {
  auto& symbols = word.symbols;
  auto& heap = word.candidates;
  const auto consider = [&](uint32_t left, bool heaped) {
    if (left == Word::kEnd || symbols[left].next == Word::kEnd) return;
    const Rule* rule = find_rule(symbols[left].id, symbols[symbols[left].next].id);
    if (rule == nullptr) return;
    heap.push_back({rule->rank, left, rule->result});
    if (heaped) std::push_heap(heap.begin(), heap.end());
  };
  for (uint32_t i = 0; i + 1 < symbols.size(); ++i) consider(i, false);
  std::make_heap(heap.begin(), heap.end());
  while (!heap.empty()) {
    std::pop_heap(heap.begin(), heap.end());
    const Word::Candidate best = heap.back();
    heap.pop_back();
    Word::Symbol& left = symbols[best.left];
    if (left.gone || left.next == Word::kEnd) continue;
    Word::Symbol& right = symbols[left.next];
    const Rule* rule = find_rule(left.id, right.id);
    if (rule == nullptr || rule->result != best.result) continue;  // the neighbours have changed since
    left.id = best.result;
    right.gone = true;
    left.next = right.next;
    if (left.next != Word::kEnd) symbols[left.next].previous = best.left;
    consider(left.previous, true);
    consider(best.left, true);
  }
}

void Bpe::encode(std::string_view piece, std::vector<TokenId>& out) const {
  if (piece.empty()) return;
  if (spec_->ignore_merges) {
    if (const auto id = vocabulary_->find_plain(piece)) {
      out.push_back(*id);
      return;
    }
  }
  thread_local Word word;
  word.clear();
  read_chars(piece, word);
  merge(word);
  for (const Word::Symbol& symbol : word.symbols) {
    if (!symbol.gone && symbol.id != Word::kWall) out.push_back(symbol.id);
  }
  if (word.symbols.capacity() > 1 << 16) word = Word();  // one huge piece should not keep its memory
}

}  // namespace quire
