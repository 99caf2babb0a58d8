#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "kv/pages/kv_events.h"
#include "kv/pages/page_pool.h"
#include "kv/prefix/prefix_index.h"

namespace quire {

// Row -> page for one sequence, in every layer group; a row is a token's position unless tokens before it were pruned. Holds a share of each of its pages. Filled and emptied by
// KvCache.
class PageTable {
 public:
  PageTable(uint32_t groups, SequenceId owner, CacheSalt salt = {})
      : owner_(owner), salt_(salt), groups_(groups) {}
  // A copy shares all pages. REQUIRES: nothing is published (KvCache::fork copies any).
  PageTable(const PageTable& other);
  PageTable(PageTable&&) = default;
  PageTable& operator=(PageTable&&) = default;

  SequenceId owner() const { return owner_; }
  // What it finds and publishes is under this one.
  CacheSalt salt() const { return salt_; }
  // Rows below this have room in their pages (behind a window: had).
  uint32_t reserved_tokens() const { return reserved_tokens_; }
  uint32_t groups() const { return uint32_t(groups_.size()); }
  // How many rows a group has more than `reserved_tokens` says: those of tokens that were pruned in others.
  uint32_t row_shift(uint32_t group) const { return groups_[group].row_shift; }
  // Its rows are not those of a prefix any more: they are never published.
  bool pruned() const { return pruned_; }
  // The pages of a group by position / page_tokens; nothing where the window has passed.
  const std::vector<std::optional<PageRef>>& pages(uint32_t group) const { return groups_[group].pages; }
  uint32_t held_pages(uint32_t group) const {
    if (group == states_.group)
      return uint32_t(states_.ends.size() + states_.kept.size() + states_.spare.size());
    return uint32_t(groups_[group].pages.size()) - groups_[group].first_page;
  }
  // What it has of states: a page each, of no position. The group of states has no others.
  struct State {
    uint32_t at = 0;  // tokens that it is the state after
    PageRef page;
  };
  // As its runs left them, the oldest first: the next run begins with the last.
  const std::vector<State>& states() const { return states_.ends; }

  // As it was when it was made, without a word to the cache, which is about to forget everything. Allocates nothing.
  void clear();

 private:
  friend class KvCache;
  struct Group {
    std::vector<std::optional<PageRef>> pages;
    uint32_t first_page = 0;  // pages before this one were freed behind the window
    uint32_t row_shift = 0;
    // Of one that was pruned to unequal numbers of rows by head: the cells of each head's rows as they were then, each
    // page * cells of a page + cell. They fill the pages there were; what comes later has every head in its own cell.
    std::vector<std::vector<uint32_t>> head_cells;
  };
  struct States {
    std::optional<uint32_t> group;
    std::vector<State> ends;            // see states()
    std::vector<State> kept;            // left on the way, to be published
    std::vector<PageRef> spare;         // nothing is in them: for what runs leave
    std::vector<uint32_t> wanted;       // tokens at which a state is to be kept, ascending
    std::vector<uint32_t> pages, rows;  // of the run begun last: see KvTables
  };
  SequenceId owner_;
  CacheSalt salt_;
  std::vector<Group> groups_;
  States states_;
  uint32_t reserved_tokens_ = 0;
  uint32_t published_ = 0;  // nodes from the first on that others can find
  bool pruned_ = false;
  PrefixNodeId node_ =
      PrefixIndex::kRoot;  // the last that is published, held in the index; kRoot: there is none
};

}  // namespace quire
