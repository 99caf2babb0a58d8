#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "kv/kv_cache.h"

namespace quire {

// One node of the prefix tree on its way out of a cache, or into one: its tokens, which come after those of its parent, and
// the bytes of the pages that it has.
struct KvNode {
  static constexpr uint32_t kNoParent = 0xffffffffu;
  uint32_t parent = kNoParent;                  // its place among the nodes before it
  CacheSalt salt = {};                          // of one without a parent; the others have their parent's
  std::optional<PrunedDocument> document = {};  // of the first of a pruned text
  std::vector<TokenId> tokens;                  // as many as all nodes have, or fewer in a leaf
  std::vector<std::vector<std::byte>> pages;    // as KvLayout::node_pages says; empty where there is none
};

// Copies what is published when it is made, and what is in the host tier, a few pages at a time, so that the engine can go on in
// between. Those used last come first, parents always before their children, what is in the host tier alone at the end. It
// holds no page: one that is evicted meanwhile is missing from its node. Engine thread only; the cache must outlive it.
class KvExport {
 public:
  explicit KvExport(KvCache& kv);
  // Only the pages along these tokens.
  KvExport(KvCache& kv, const SaltedTokens& tokens);
  ~KvExport();
  KvExport(const KvExport&) = delete;
  KvExport& operator=(const KvExport&) = delete;

  size_t nodes() const { return nodes_.size(); }
  // The next nodes, until their pages have `bytes` or more; none: that was all.
  std::vector<KvNode> take(size_t bytes, const MakeMoves& make);

 private:
  // A node in memory, in the host tier, or in both.
  struct Both {
    std::optional<PrefixNodeId> here, host;
  };
  struct Place {
    Both node;
    uint32_t parent = KvNode::kNoParent;
  };
  std::vector<Both> roots() const;
  Both child_of(const Both& parent, std::span<const TokenId> tokens) const;
  void add_children(const Both& parent, std::vector<Both>& children) const;
  void add(const Both& node, uint32_t parent);
  KvNode node_at(const Place& place, KvMoves& moves) const;

  KvCache& kv_;
  PrefixIndex* host_;         // the host tier's tree; null: there is none
  std::vector<Place> nodes_;  // held in their trees: a node's id is not given to another meanwhile
  size_t next_ = 0;
  uint64_t age_;  // of the cache: what it has forgotten since is gone
};

// Puts nodes into a cache: first into pages that nobody can find, so that nothing has happened if the rest turns out to
// be damaged, and then all at once. It takes free pages only and evicts nothing: the first node that finds no room and
// all after it are left out. Engine thread only; the cache must outlive it, and nobody else may use it meanwhile.
class KvImport {
 public:
  // Throws Error if the cache shares nothing: what is restored could not be found.
  explicit KvImport(KvCache& kv);

  // REQUIRES: a full node for a parent, added before; 1 to node_tokens tokens; pages of the groups' sizes; a document that was
  // checked, where the salt is of one.
  void add(const KvNode& node, const MakeMoves& make);

  struct Result {
    uint64_t nodes = 0, tokens = 0;  // that are in the cache now
    uint64_t pages = 0, bytes = 0;   // that were filled; what was there already is not
    uint64_t nodes_left_out = 0, tokens_left_out = 0;
  };
  Result commit();

 private:
  struct Staged {
    uint32_t parent = KvNode::kNoParent;
    CacheSalt salt;
    std::optional<PrunedDocument> document;
    std::vector<TokenId> tokens;
    std::vector<std::optional<PageRef>> pages;  // as the node's
    std::optional<PrefixNodeId> node;           // if the cache has it, from the start or since commit
  };
  bool wants(const KvNode& node, size_t page, const std::optional<PrefixNodeId>& known) const;
  std::optional<PrefixNodeId> known_in_place_of(const KvNode& node) const;
  PrefixNodeId parent_of(const Staged& staged);
  std::optional<PrefixNodeId> find(PrefixNodeId parent, std::span<const TokenId> tokens) const;
  void publish(Staged& staged, uint64_t use);

  KvCache& kv_;
  std::vector<Staged> staged_;
  Result result_;
};

}  // namespace quire
