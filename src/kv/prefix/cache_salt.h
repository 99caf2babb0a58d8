#pragma once

#include <compare>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <span>

#include "base/id.h"

namespace quire {

// Sequences find each other's pages only if their salts are equal. Not a secret by itself: whoever makes salts sees to it that
// nobody can make another's.
struct CacheSalt {
  uint64_t key = 0;     // of whoever asks; 0: of everybody
  uint64_t text = 0;    // of what a request brings along; 0: nothing
  uint64_t pruned = 0;  // of a text that is not whole, and how it was pruned; 0: all its rows are there

  bool is_none() const { return key == 0 && text == 0 && pruned == 0; }
  auto operator<=>(const CacheSalt&) const = default;
};

// The beginning of a sequence as the cache knows it: tokens, under a salt.
struct SaltedTokens {
  std::span<const TokenId> tokens = {};
  CacheSalt salt = {};

  SaltedTokens() = default;
  template <std::convertible_to<std::span<const TokenId>> T>
  SaltedTokens(const T& tokens, CacheSalt salt = {}) : tokens(tokens), salt(salt) {}

  size_t size() const { return tokens.size(); }
  SaltedTokens first(size_t count) const { return {tokens.first(count), salt}; }
};

}  // namespace quire
