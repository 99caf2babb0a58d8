#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "base/id.h"
#include "kv/layout/kv_layout.h"
#include "kv/prefix/prefix_index.h"

namespace quire {

// Where a block's pages are: where they are computed, in the host's memory beside a device's, on the disk, or in a store that others
// share.
enum class BlockPlace : uint8_t { memory, host, disk, remote };

// A full node of the prefix index, to those who are not part of the cache.
struct StoredBlock {
  uint64_t hash = 0;               // of its tokens and all before them
  std::optional<uint64_t> parent;  // the hash of the block before it; nothing: it is the first
  std::span<const TokenId> tokens = {};
  BlockPlace place = BlockPlace::memory;
};

// Is told which blocks are where. Called on the engine's thread in the middle of a step: it neither waits nor throws nor
// allocates.
class BlockListener {
 public:
  virtual ~BlockListener() = default;
  virtual void stored(const StoredBlock& block) noexcept = 0;
  virtual void removed(uint64_t hash, BlockPlace place) noexcept = 0;
  // No block is anywhere any more.
  virtual void cleared() noexcept = 0;
};

// Tells a listener of an index's nodes as their pages come and go. A node is there while all its pages of layers that keep
// everything are; pages behind a window, and states, come and go beside them (where a model has nothing else, they count).
// Of tokens under a salt nothing is told: they are somebody's own. Engine thread only.
class BlockNews {
 public:
  BlockNews(const KvLayout& layout, BlockPlace place);

  // From now on; null: nobody.
  void tell(BlockListener* listener) { listener_ = listener; }

  // A page of a node that had none has come.
  void came(const PrefixIndex& index, PrefixNodeId id, uint32_t node_page) const {
    if (listener_ != nullptr && counts(index.node(id), node_page)) tell_stored(index, id);
  }
  // A page is about to go.
  void goes(const PrefixIndex& index, PrefixNodeId id, uint32_t node_page) const {
    if (listener_ != nullptr && counts(index.node(id), node_page))
      listener_->removed(index.node(id).hash, place_);
  }
  // All of them have gone, here and in every other place.
  void all_went() const {
    if (listener_ != nullptr) listener_->cleared();
  }

 private:
  // Whether the node is there with this page, and is not without it.
  bool counts(const PrefixIndex::Node& node, uint32_t node_page) const;
  void tell_stored(const PrefixIndex& index, PrefixNodeId id) const;

  BlockListener* listener_ = nullptr;
  BlockPlace place_;
  uint32_t node_tokens_;
  std::vector<bool> needed_;  // by KvLayout::node_pages
};

}  // namespace quire
