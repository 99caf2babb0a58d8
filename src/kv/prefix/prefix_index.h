#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <optional>
#include <span>
#include <unordered_map>
#include <vector>

#include "base/clock.h"
#include "base/id.h"
#include "kv/pages/page_pool.h"
#include "kv/prefix/cache_salt.h"

namespace quire {

using PrefixNodeId = Id<struct PrefixNodeTag>;

// What was computed and is still in pages, as a tree: a node is so many tokens after those of its parent as fill whole pages
// in every layer group. A full node is found by its hash, which goes over all tokens before it as well, and is then compared
// token by token; a part of one by looking at every child. It holds no share of a page. Engine thread only.
//
// Each salt has a tree of its own, whose root is a node without tokens below kRoot. It is there as long as anything is below
// it, so that salts from outside cannot pile up.
class PrefixIndex {
 public:
  struct Node {
    PrefixNodeId parent;
    uint64_t hash = 0;
    CacheSalt salt = {};          // as that of its root
    uint32_t depth = 0;           // nodes before it
    std::vector<TokenId> tokens;  // as many as all nodes have, or fewer in a leaf; none in a root
    // As KvLayout::node_pages says; nothing where it was evicted, behind a window or never needed.
    std::vector<std::optional<PageId>> pages;
    std::vector<PrefixNodeId> children;
    uint32_t holders = 0;  // sequences that will add children
    bool alive = false;
  };
  static constexpr PrefixNodeId kRoot{0};  // of what has no salt, and above all others

  // `salt`: of the model and the numerics, so that the hashes of two models never meet.
  PrefixIndex(size_t node_pages, uint32_t node_tokens, uint64_t salt);

  Node& node(PrefixNodeId id) { return nodes_[id.value]; }
  const Node& node(PrefixNodeId id) const { return nodes_[id.value]; }
  size_t size() const { return nodes_.size() - 1 - unused_.size() - roots_.size(); }

  // Nothing: nobody has anything under this salt.
  std::optional<PrefixNodeId> root(CacheSalt salt) const;
  // The caller adds something below it, or prunes it.
  PrefixNodeId root_or_add(CacheSalt salt);
  bool is_root(PrefixNodeId id) const { return node(id).tokens.empty(); }
  std::vector<PrefixNodeId> roots() const;  // kRoot first

  // The child with exactly these tokens, as many as a full node has.
  std::optional<PrefixNodeId> child(PrefixNodeId parent, std::span<const TokenId> tokens) const;

  // The child that has most of `tokens` at its beginning, or of those that have no others. `tokens` 0: none has any.
  enum class Of : uint8_t { all, whole };
  struct Longest {
    PrefixNodeId node;
    uint32_t tokens = 0;
  };
  Longest longest_child(PrefixNodeId parent, std::span<const TokenId> tokens, Of which = Of::all) const;

  PrefixNodeId add(PrefixNodeId parent, std::span<const TokenId> tokens);
  void hold(PrefixNodeId id) { ++nodes_[id.value].holders; }
  void drop(PrefixNodeId id);  // and forgets it if it has become useless

  // Forgets the node and those above it as long as they have no pages, no children and no holders.
  void prune(PrefixNodeId id);

  // Forgets every node but the root. Allocates nothing.
  void forget_all();

  // Remembers that these tokens were here once, for explanations.
  void remember_evicted(PrefixNodeId id, Clock::time_point now);
  // `parent`: the hash of the node that they would come after.
  std::optional<Clock::time_point> evicted_at(uint64_t parent, std::span<const TokenId> tokens) const;
  uint64_t root_hash(CacheSalt salt) const;

  void check_invariants() const;

 private:
  uint64_t hash_of(uint64_t parent, std::span<const TokenId> tokens) const;
  PrefixNodeId take_id();

  size_t node_pages_;
  uint32_t node_tokens_;
  uint64_t salt_;
  std::vector<Node> nodes_;
  std::vector<PrefixNodeId> unused_;
  std::map<CacheSalt, PrefixNodeId> roots_;               // but for kRoot
  std::unordered_multimap<uint64_t, PrefixNodeId> full_;  // by hash
  std::unordered_map<uint64_t, Clock::time_point> evicted_;
  std::deque<uint64_t> evicted_order_;
};

}  // namespace quire
