#pragma once

#include <algorithm>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "engine/pruning/pruning_options.h"
#include "kv/kv_cache.h"

namespace quire {

// The beginning of a prompt that is pruned once and begun with by many: where it is found, and how it is called.
struct DocumentKey {
  CacheSalt salt = {};
  std::string name;  // says how it is pruned: policy, rows, tokens, and a hash of all of it
  uint32_t tokens = 0, rows = 0;
};

// Nothing: it is not shared, or so short that all of it stays and it is found like any prefix. `options`: with their multiple.
std::optional<DocumentKey> document_key(const SaltedTokens& prompt, const PruningOptions& options);

// How many tokens of a prompt are those of the document, whatever is asked after it: `with` gives the tokens of the prompt where
// another text takes the question's place.
template <class With>
uint32_t document_tokens(std::span<const TokenId> prompt, With&& with) {
  size_t common = prompt.size();
  for (const char* other : {"?", "A"}) {
    const std::vector<TokenId> tokens = with(other);
    common = std::min<size_t>(common, size_t(std::ranges::mismatch(prompt, tokens).in1 - prompt.begin()));
  }
  return uint32_t(common);
}

}  // namespace quire
