#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "base/id.h"
#include "grammar/columns.h"

namespace quire::grammar {

// Tokens as bits of words, the lowest first.
using TokenMask = std::vector<uint32_t>;

inline bool has_token(std::span<const uint32_t> mask, TokenId token) {
  return (mask[token / 32] >> token % 32 & 1) != 0;
}

// What a special token is in a grammar: bytes that no text has, followed by its number.
std::string special_token_bytes(TokenId token);

// The tokens of a model by the bytes they stand for, as a tree. Immutable once made; any thread may use it.
//
// Most tokens of most vocabularies are *plain*: they may stand inside a JSON string as they are, since they have no quote,
// backslash, control character or piece of a character in them. Where a column allows a run of any such characters they are allowed by
// their number of characters, all at once.
class TokenTrie {
 public:
  // By token; empty: it stands for no text, and no grammar allows it.
  explicit TokenTrie(std::vector<std::string> bytes);

  size_t size() const { return bytes_.size(); }
  size_t mask_words() const { return (bytes_.size() + 31) / 32; }
  std::string_view bytes(TokenId token) const { return bytes_[token]; }

  // Adds the tokens that may follow in `column`.
  void add_allowed(Columns& columns, Columns::Id column, TokenMask& mask) const;
  // The longest token that `text` begins with, if there is one.
  std::optional<TokenId> longest_at(std::string_view text) const;

 private:
  static constexpr uint32_t kNone = ~uint32_t(0);
  static constexpr size_t kMostChars = 32;  // of tokens that are counted
  struct Node {
    uint32_t end = 0;  // the first node that does not begin with this one's bytes
    uint32_t token = kNone;
    uint16_t depth = 0;  // bytes before this one
    uint8_t byte = 0;
    uint8_t has_same : 1 = 0;  // another token has the same bytes
    uint8_t inner : 6 = 0;     // which kinds of bytes are in the nodes that begin with this one's
  };
  // Of a column: the kinds of bytes that lead back to it, as far as they were asked for.
  struct Loops {
    Columns::Id column = Columns::kDead;
    uint8_t asked = 0, found = 0;
  };
  struct Tree {
    std::vector<Node> nodes;  // a node, what begins with it, then the next
    uint32_t deepest = 0;
    bool is_plain = false;
  };

  void build(Tree& tree, std::vector<TokenId> tokens);
  static bool stays(Columns& columns, Columns::Id column, uint8_t kinds, Loops& known);
  void add_node(const Node& node, TokenMask& mask) const;
  void add_walking(const Tree& tree, Columns& columns, Columns::Id column, TokenMask& mask) const;
  void find_longest(const Tree& tree, std::string_view text, size_t& length,
                    std::optional<TokenId>& token) const;

  std::vector<std::string> bytes_;
  std::vector<uint32_t> next_same_;  // by token: another of the same bytes, or kNone
  Tree plain_, other_;
  std::vector<std::pair<TokenId, uint32_t>>
      long_plain_;  // of more than kMostChars characters, with their number
  TokenMask all_plain_;
  std::array<TokenMask, kMostChars + 1> plain_up_to_;  // by characters
};

}  // namespace quire::grammar
