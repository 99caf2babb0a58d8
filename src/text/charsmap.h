#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "text/tokenizer_spec.h"

namespace quire {

// SentencePiece's precompiled map from short strings to their normal form: a double-array trie followed by
// the texts it points to, each ended by a zero byte.
class CompiledCharsmap {
 public:
  explicit CompiledCharsmap(const Charsmap& map);  // throws Error if its bytes make no sense

  std::string apply(std::string_view text) const;

 private:
  struct Found {
    size_t bytes = 0;
    std::string_view text;
  };
  template <class Visit>
  void prefixes(std::string_view text, Visit&& visit) const;
  std::optional<Found> shortest(std::string_view text) const;
  std::optional<Found> longest(std::string_view text) const;
  std::optional<std::string_view> text_at(uint32_t offset) const;
  void apply_to_grapheme(std::string_view grapheme, std::string& out) const;

  Charsmap::Match match_;
  std::vector<uint32_t> units_;
  std::string texts_;
};

}  // namespace quire
