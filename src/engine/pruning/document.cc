#include "engine/pruning/document.h"

#define XXH_INLINE_ALL
#include <fmt/format.h>
#include <xxhash.h>

namespace quire {

std::optional<DocumentKey> document_key(const SaltedTokens& prompt, const PruningOptions& options) {
  const uint32_t tokens = options.scored > 0 ? options.scored : uint32_t(prompt.size());
  const uint32_t rows = options.kept_of(tokens);
  if (!options.is_shared || rows >= tokens) return std::nullopt;
  const std::span<const TokenId> text = prompt.tokens.first(tokens);
  std::vector<uint32_t> how = {uint32_t(options.policy), rows, options.window};
  if (asks_evaluator(options.policy)) {
    how.push_back(options.evaluator.layer);
    how.insert(how.end(), options.evaluator.heads.begin(), options.evaluator.heads.end());
  }
  const uint64_t of_text = XXH3_64bits(text.data(), text.size_bytes());
  const uint64_t hash = XXH3_64bits_withSeed(how.data(), how.size() * sizeof(uint32_t), of_text);
  DocumentKey key{.salt = prompt.salt, .name = {}, .tokens = tokens, .rows = rows};
  key.salt.pruned = hash == 0 ? 1 : hash;
  key.name = fmt::format("{}-{}-of-{}-{:016x}", name(options.policy), rows, tokens, key.salt.pruned);
  return key;
}

}  // namespace quire
