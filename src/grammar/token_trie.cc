#include "grammar/token_trie.h"

#include <algorithm>
#include <numeric>
#include <optional>

#include "base/error.h"
#include "grammar/text_cursor.h"

namespace quire::grammar {
namespace {

// Characters of a plain token; nothing if it is none.
std::optional<size_t> count_plain(std::string_view bytes) {
  try {
    TextCursor text(bytes);
    size_t count = 0;
    for (; !text.done(); ++count) {
      const uint32_t c = text.take_character();
      if (c < 0x20 || c == '"' || c == '\\') return std::nullopt;
    }
    return count;
  } catch (const Error&) {
    return std::nullopt;
  }
}

// Where every byte from `first` to `last` leads, if that is one place.
struct OnePlace {
  Columns& columns;
  std::optional<Columns::Id> place = {};
  bool one = true;

  void see(Columns::Id from, uint8_t first, uint8_t last) {
    for (int byte = first; byte <= last && one; ++byte) {
      const Columns::Id to = columns.next(from, uint8_t(byte));
      one = !place || *place == to;
      place = to;
    }
  }
  // The rest of characters of `bytes` bytes whose lead is one of these.
  void see_characters(Columns::Id from, uint8_t first, uint8_t last, uint8_t second_first,
                      uint8_t second_last, int bytes) {
    std::vector<Columns::Id> places;
    const auto follow = [&](std::span<const Columns::Id> origins, uint8_t low, uint8_t high) {
      std::vector<Columns::Id> reached;
      for (const Columns::Id origin : origins) {
        for (int byte = low; byte <= high; ++byte) reached.push_back(columns.next(origin, uint8_t(byte)));
      }
      std::ranges::sort(reached);
      reached.erase(std::unique(reached.begin(), reached.end()), reached.end());
      return reached;
    };
    places = follow({{from}}, first, last);
    for (int i = 2; i < bytes && one; ++i) {
      places = follow(places, i == 2 ? second_first : 0x80, i == 2 ? second_last : 0xBF);
      one = places.size() < 8;
    }
    for (const Columns::Id at : places)
      see(at, bytes == 2 ? second_first : 0x80, bytes == 2 ? second_last : 0xBF);
  }
};

// Where any plain character leads, if that is one place.
std::optional<Columns::Id> find_after_plain(Columns& columns, Columns::Id from) {
  OnePlace all{columns};
  all.see(from, '0', '9');
  all.see(from, 0x20, 0x21);
  all.see(from, 0x23, 0x5B);
  all.see(from, 0x5D, 0x7F);
  if (!all.one) return std::nullopt;
  all.see_characters(from, 0xC2, 0xDF, 0x80, 0xBF, 2);
  all.see_characters(from, 0xE0, 0xE0, 0xA0, 0xBF, 3);
  all.see_characters(from, 0xE1, 0xEC, 0x80, 0xBF, 3);
  all.see_characters(from, 0xED, 0xED, 0x80, 0x9F, 3);
  all.see_characters(from, 0xEE, 0xEF, 0x80, 0xBF, 3);
  all.see_characters(from, 0xF0, 0xF0, 0x90, 0xBF, 4);
  all.see_characters(from, 0xF1, 0xF3, 0x80, 0xBF, 4);
  all.see_characters(from, 0xF4, 0xF4, 0x80, 0x8F, 4);
  return all.one ? all.place : std::nullopt;
}

std::optional<Columns::Id> after_plain(Columns& columns, Columns::Id from) {
  Columns::AfterPlain known = columns.after_plain(from);
  if (!known.known) {
    const std::optional<Columns::Id> to = find_after_plain(columns, from);
    known = {.to = to.value_or(Columns::kDead), .known = true, .one_place = to.has_value()};
    columns.after_plain(from) = known;
  }
  return known.one_place ? std::optional(known.to) : std::nullopt;
}

}  // namespace

std::string special_token_bytes(TokenId token) {
  return {'\xFF', char(token >> 16 & 0xFF), char(token >> 8 & 0xFF), char(token & 0xFF)};
}

TokenTrie::TokenTrie(std::vector<std::string> bytes)
    : bytes_(std::move(bytes)), next_same_(bytes_.size(), kNone) {
  std::vector<TokenId> plain, long_plain, other;
  all_plain_.resize(mask_words());
  plain_up_to_.fill(all_plain_);
  for (TokenId token = 0; token < bytes_.size(); ++token) {
    if (bytes_[token].empty() || bytes_[token].size() > UINT16_MAX) continue;
    const std::optional<size_t> chars = count_plain(bytes_[token]);
    (chars ? plain : other).push_back(token);
    if (!chars) continue;
    all_plain_[token / 32] |= 1u << token % 32;
    if (*chars > kMostChars) long_plain.push_back(token);
    for (size_t most = *chars; most <= kMostChars; ++most) plain_up_to_[most][token / 32] |= 1u << token % 32;
  }
  build(plain_, std::move(plain));
  build(long_plain_, std::move(long_plain));
  build(other_, std::move(other));
}

void TokenTrie::build(Tree& tree, std::vector<TokenId> tokens) {
  std::ranges::sort(tokens, [&](TokenId a, TokenId b) {
    const int order = bytes_[a].compare(bytes_[b]);
    return order != 0 ? order < 0 : a < b;
  });
  std::vector<uint32_t> open;  // the nodes on the way to the last token
  std::string_view before;
  const auto close_to = [&](size_t depth) {
    for (; open.size() > depth; open.pop_back()) tree.nodes[open.back()].end = uint32_t(tree.nodes.size());
  };
  for (const TokenId token : tokens) {
    const std::string_view text = bytes_[token];
    const size_t common = size_t(std::ranges::mismatch(before, text).in1 - before.begin());
    close_to(common);
    for (size_t depth = common; depth < text.size(); ++depth) {
      open.push_back(uint32_t(tree.nodes.size()));
      tree.nodes.push_back({.depth = uint16_t(depth), .byte = uint8_t(text[depth])});
    }
    Node& last = tree.nodes[open.back()];
    if (last.token != kNone) next_same_[token] = last.token;
    last.token = token;
    tree.deepest = std::max(tree.deepest, uint32_t(text.size()));
    before = text;
  }
  close_to(0);
}

void TokenTrie::add_walking(const Tree& tree, Columns& columns, Columns::Id column, TokenMask& mask) const {
  std::vector<Columns::Id> at(tree.deepest + 1);
  at[0] = column;
  const Node* const nodes = tree.nodes.data();
  for (uint32_t i = 0; i < tree.nodes.size();) {
    const Node& node = nodes[i];
    const Columns::Id to = columns.next(at[node.depth], node.byte);
    if (to == Columns::kDead) {
      i = node.end;
      continue;
    }
    at[node.depth + 1] = to;
    for (uint32_t token = node.token; token != kNone; token = next_same_[token])
      mask[token / 32] |= 1u << token % 32;
    ++i;
  }
}

std::optional<size_t> TokenTrie::plain_chars(Columns& columns, Columns::Id column) {
  for (size_t chars = 0; chars <= kMostChars; ++chars) {
    const std::optional<Columns::Id> to = after_plain(columns, column);
    if (!to) return std::nullopt;
    if (*to == Columns::kDead) return chars;
    if (*to == column) return kEndless;
    column = *to;
  }
  return kMostChars + 1;  // at least
}

void TokenTrie::add_allowed(Columns& columns, Columns::Id column, TokenMask& mask) const {
  const std::optional<size_t> chars = plain_chars(columns, column);
  if (!chars) {
    add_walking(plain_, columns, column, mask);
  } else if (*chars > 0) {
    const TokenMask& allowed = *chars == kEndless ? all_plain_ : plain_up_to_[std::min(*chars, kMostChars)];
    for (size_t i = 0; i < mask.size(); ++i) mask[i] |= allowed[i];
    if (*chars == kMostChars + 1) add_walking(long_plain_, columns, column, mask);
  }
  add_walking(other_, columns, column, mask);
}

void TokenTrie::find_longest(const Tree& tree, std::string_view text, size_t& length,
                             std::optional<TokenId>& token) const {
  size_t depth = 0;
  for (uint32_t i = 0, end = uint32_t(tree.nodes.size()); i < end && depth < text.size();) {
    const Node& node = tree.nodes[i];
    if (node.byte != uint8_t(text[depth])) {
      i = node.end;
      continue;
    }
    ++depth;
    if (node.token != kNone && depth > length) {
      length = depth;
      token = node.token;
    }
    end = node.end;
    ++i;
  }
}

std::optional<TokenId> TokenTrie::longest_at(std::string_view text) const {
  size_t length = 0;
  std::optional<TokenId> token;
  find_longest(plain_, text, length, token);
  find_longest(other_, text, length, token);
  return token;
}

}  // namespace quire::grammar
