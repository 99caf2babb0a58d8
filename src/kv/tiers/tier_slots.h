#pragma once

#include <cstddef>
#include <cstdint>
#include <list>
#include <optional>
#include <vector>

#include "kv/layout/kv_layout.h"
#include "kv/prefix/block_news.h"
#include "kv/prefix/prefix_index.h"

namespace quire {

// Which page is in which slot of a tier, and in what order they were used. A page is found by all tokens up to its node's end,
// compared one by one, under their salt. Each layer group has as many slots as hold its pages of so many nodes: what is used
// together is kept together. Knows no bytes. Engine thread only.
class TierSlots {
 public:
  struct Slot {
    PrefixNodeId node = PrefixIndex::kRoot;  // the root: nothing is in it
    uint32_t node_page = 0;
    std::list<uint32_t>::iterator place;  // in the order of uses
  };

  // As many nodes as fit into so many bytes, which may be none.
  TierSlots(const KvLayout& layout, uint64_t bytes, BlockPlace place);
  static uint64_t node_bytes(const KvLayout& layout);

  uint32_t groups() const { return uint32_t(groups_.size()); }
  uint32_t node_pages() const { return uint32_t(node_pages_.size()); }
  uint32_t node_tokens() const { return node_tokens_; }
  uint32_t group_of(uint32_t node_page) const { return node_pages_[node_page].group; }
  size_t page_bytes(uint32_t group) const { return groups_[group].page_bytes; }
  uint32_t slots(uint32_t group) const { return uint32_t(groups_[group].slots.size()); }
  const Slot& slot(uint32_t group, uint32_t slot) const { return groups_[group].slots[slot]; }
  bool is_taken(uint32_t group, uint32_t index) const {
    return slot(group, index).node != PrefixIndex::kRoot;
  }
  // Those that have a page, the one used longest ago first.
  const std::list<uint32_t>& uses(uint32_t group) const { return groups_[group].uses; }
  bool has_free(uint32_t group) const { return !groups_[group].free.empty(); }
  uint64_t capacity_bytes() const { return capacity_bytes_; }
  uint64_t used_bytes() const { return used_bytes_; }
  uint64_t pages() const { return pages_; }

  // Where a page is: which of its node (KvLayout::node_pages), and all tokens up to the node's end.
  std::optional<uint32_t> find(uint32_t node_page, const SaltedTokens& prefix) const;
  // A slot for a page that has none. REQUIRES: one of its group is free.
  uint32_t take(uint32_t node_page, const SaltedTokens& prefix) {
    return take_at(find_or_add(prefix), node_page);
  }
  // The same of a node of the tree, which is full.
  uint32_t take_at(PrefixNodeId node, uint32_t node_page);
  // Its page is not there any more. The slot is free, or `give_back` makes it so.
  enum class Then : uint8_t { free, kept };
  void forget(uint32_t group, uint32_t slot, Then then = Then::free);
  void give_back(uint32_t group, uint32_t slot) { groups_[group].free.push_back(slot); }
  // A free slot that nobody may take until it is given back.
  void withhold(uint32_t group, uint32_t slot) { std::erase(groups_[group].free, slot); }
  void touch(uint32_t group, uint32_t slot);

  // The way down along some tokens as far as they are known: by node, which of its pages are there.
  std::vector<std::vector<bool>> pages_along(const SaltedTokens& tokens) const;
  // They are about to be used: of one use the deepest goes first, because it is lost with what is before it.
  void touch_along(const SaltedTokens& tokens);
  // All tokens up to the end of the slot's node, and their salt.
  std::vector<TokenId> tokens_of(uint32_t group, uint32_t slot) const;
  CacheSalt salt_of(uint32_t group, uint32_t slot) const;

  // Says which blocks are here from now on. That all are forgotten is for the cache to say.
  void tell(BlockListener* listener) { news_.tell(listener); }

  const PrefixIndex& tree() const { return tree_; }  // its nodes' `pages` are slots
  PrefixIndex& tree() { return tree_; }              // for those who hold nodes

  // Nothing is found any more, and every slot is free. Allocates nothing.
  void forget_all();

  void check_invariants() const;

 private:
  struct Group {
    size_t page_bytes = 0;
    std::vector<Slot> slots;
    std::vector<uint32_t> free;
    std::list<uint32_t> uses;
  };
  std::optional<PrefixNodeId> find_node(const SaltedTokens& prefix) const;
  PrefixNodeId find_or_add(const SaltedTokens& prefix);

  std::vector<KvLayout::NodePage> node_pages_;
  uint32_t node_tokens_;
  std::vector<Group> groups_;
  PrefixIndex tree_;
  BlockNews news_;
  uint64_t capacity_bytes_ = 0, used_bytes_ = 0, pages_ = 0;
};

}  // namespace quire
