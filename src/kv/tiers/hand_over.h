#pragma once

#include "kv/tiers/stored_page.h"

namespace quire {

// How many nodes of a prompt a ticket speaks of: 0 if it is not true of this one.
inline uint32_t nodes_told_of(const HandOver& over, std::span<const TokenId> prompt, CacheSalt salt,
                              uint32_t node_tokens, PrefixTags& tags) {
  const uint32_t nodes = over.tokens / node_tokens;
  if (nodes == 0 || over.tokens > prompt.size() || over.tokens % node_tokens != 0) return 0;
  return tags.of(prompt, salt, nodes) == over.prefix ? nodes : 0;
}

}  // namespace quire
