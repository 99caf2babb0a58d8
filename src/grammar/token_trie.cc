#include "grammar/token_trie.h"

#include <algorithm>
#include <numeric>
#include <optional>

#include "base/error.h"
#include "grammar/text_cursor.h"

namespace quire::grammar {
namespace {

// Kinds of bytes that patterns mostly treat alike, as bits.
constexpr uint8_t kind_of(uint8_t byte) {
  if (byte >= 'a' && byte <= 'z') return 1;
  if (byte >= 'A' && byte <= 'Z') return 2;
  if (byte >= '0' && byte <= '9') return 4;
  return byte == ' ' ? 8 : byte < 0x80 ? 16 : 32;
}

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

}  // namespace

std::string special_token_bytes(TokenId token) {
  return {'\xFF', char(token >> 16 & 0xFF), char(token >> 8 & 0xFF), char(token & 0xFF)};
}

TokenTrie::TokenTrie(std::vector<std::string> bytes)
    : bytes_(std::move(bytes)), next_same_(bytes_.size(), kNone) {
  std::vector<TokenId> plain, other;
  all_plain_.resize(mask_words());
  plain_up_to_.fill(all_plain_);
  for (TokenId token = 0; token < bytes_.size(); ++token) {
    if (bytes_[token].empty() || bytes_[token].size() > UINT16_MAX) continue;
    const std::optional<size_t> chars = count_plain(bytes_[token]);
    (chars ? plain : other).push_back(token);
    if (!chars) continue;
    all_plain_[token / 32] |= 1u << token % 32;
    if (*chars > kMostChars) long_plain_.emplace_back(token, uint32_t(*chars));
    for (size_t most = *chars; most <= kMostChars; ++most) plain_up_to_[most][token / 32] |= 1u << token % 32;
  }
  build(plain_, std::move(plain));
  plain_.is_plain = true;
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
    for (; open.size() > depth; open.pop_back()) {
      Node& node = tree.nodes[open.back()];
      node.end = uint32_t(tree.nodes.size());
      if (open.size() > 1) tree.nodes[open[open.size() - 2]].inner |= node.inner | kind_of(node.byte);
    }
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
    if (last.token != kNone) {
      next_same_[token] = last.token;
      last.has_same = 1;
    }
    last.token = token;
    tree.deepest = std::max(tree.deepest, uint32_t(text.size()));
    before = text;
  }
  close_to(0);
}

void TokenTrie::add_node(const Node& node, TokenMask& mask) const {
  if (node.token == kNone) return;
  mask[node.token / 32] |= 1u << node.token % 32;
  if (node.has_same == 0) return;
  for (uint32_t token = next_same_[node.token]; token != kNone; token = next_same_[token])
    mask[token / 32] |= 1u << token % 32;
}

// Whether all bytes of some kinds lead from a column back to it.
bool TokenTrie::stays(Columns& columns, Columns::Id column, uint8_t kinds, Loops& known) {
  if (known.column != column) known = {.column = column};
  uint8_t found = uint8_t(kinds & ~known.asked);
  if (found != 0) {
    known.asked |= found;
    for (int byte = 0; byte < 256 && found != 0; ++byte) {
      const uint8_t kind = kind_of(uint8_t(byte));
      if ((found & kind) != 0 && columns.next(column, uint8_t(byte)) != column) found &= uint8_t(~kind);
    }
    known.found |= found;
  }
  return (kinds & ~known.found) == 0;
}

void TokenTrie::add_walking(const Tree& tree, Columns& columns, Columns::Id column, TokenMask& mask) const {
  struct Step {
    Columns::Id column;
    const Columns::Id* known;  // what follows it
  };
  Loops loops;
  std::vector<Step> at(tree.deepest + 1);
  at[0] = {column, columns.known_next(column)};
  const Node* const nodes = tree.nodes.data();
  const uint32_t end = uint32_t(tree.nodes.size());
  for (uint32_t i = 0; i < end;) {
    const Node& node = nodes[i];
    Step& step = at[node.depth];
    Columns::Id to = step.known != nullptr ? step.known[node.byte] : Columns::kUnknown;
    if (to == Columns::kUnknown) {
      to = columns.next(step.column, node.byte);
      step.known = columns.known_next(step.column);
    }
    if (to == Columns::kDead) {
      i = node.end;
      continue;
    }
    add_node(node, mask);
    ++i;
    if (i == node.end) continue;
    // What begins so is allowed whole where strings have no end, and where no byte of it leads elsewhere.
    if ((tree.is_plain && columns.is_endless(to)) ||
        (to == step.column && stays(columns, to, node.inner, loops))) {
      for (; i < node.end; ++i) add_node(nodes[i], mask);
      continue;
    }
    at[node.depth + 1] = {to, columns.known_next(to)};
  }
}

void TokenTrie::add_allowed(Columns& columns, Columns::Id column, TokenMask& mask) const {
  if (const std::optional<uint32_t> chars = columns.plain_run(column)) {
    const TokenMask& allowed =
        *chars == Columns::kEndless ? all_plain_ : plain_up_to_[std::min<size_t>(*chars, kMostChars)];
    for (size_t i = 0; i < mask.size(); ++i) mask[i] |= allowed[i];
    for (const auto& [token, length] : long_plain_) {
      if (length <= *chars) mask[token / 32] |= 1u << token % 32;
    }
  } else {
    add_walking(plain_, columns, column, mask);
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
