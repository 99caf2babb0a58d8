#pragma once

#include <cstddef>
#include <span>
#include <vector>

#include "engine/engine.h"
#include "engine/text_runner.h"

namespace quire {

// The keys and values of every token of a text at every layer, computed in one pass and kept, those behind a window too.
// The model must outlive it. One thread.
class KvRows {
 public:
  KvRows(const EngineModel& model, KvFormat format, std::span<const TokenId> tokens);

  uint32_t tokens() const { return tokens_; }
  uint32_t layers() const { return uint32_t(runner_.layout().places.size()); }

  enum class Which : uint8_t { key, value };
  // One token's row at one layer, all KV heads of it, as it lies in the pages.
  std::vector<std::byte> bytes(Which which, uint32_t layer, uint32_t position) const;

 private:
  const uint32_t tokens_;
  mutable TextRunner runner_;
};

// How two such rows differ.
struct RowChange {
  bool changed = false;  // any bit
  double relative = 0;   // length of the difference, by that of the first
};
// REQUIRES: both have this format, which is one of floats.
RowChange compare_rows(KvFormat format, std::span<const std::byte> a, std::span<const std::byte> b);

// How the first tokens' rows of one text differ from those of another, by layer and position.
struct RowChanges {
  uint32_t first = 0;                       // position
  std::vector<std::vector<RowChange>> key;  // [layer][position - first]
  std::vector<std::vector<RowChange>> value;

  struct Layer {
    uint32_t rows = 0, keys_changed = 0, values_changed = 0;
    double largest_key = 0, largest_value = 0;  // relative
  };
  Layer layer(uint32_t index) const;
  uint32_t layers() const { return uint32_t(key.size()); }
};

// What the cache stands on, seen in one prompt.
struct CacheProof {
  TokenId appended = 0, replaced = 0, replacement = 0;
  RowChanges after_append;  // of the prompt's tokens, when one more follows
  RowChanges after_change;  // of the tokens after the first, when the first is another
};
// REQUIRES: at least two tokens, a format of floats, a vocabulary of more than one token.
CacheProof prove_cache(const EngineModel& model, KvFormat format, std::span<const TokenId> prompt);

}  // namespace quire
