#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "kv/page_pool.h"

namespace quire {

// Position -> page for one sequence, in every layer group. Holds a share of each of its pages. Filled by
// KvCache.
class PageTable {
 public:
  explicit PageTable(uint32_t groups) : groups_(groups) {}

  // Positions below this have room in their pages (behind a window: had).
  uint32_t reserved_tokens() const { return reserved_tokens_; }
  uint32_t groups() const { return uint32_t(groups_.size()); }

  // The pages of a group by position / page_tokens; nothing where the window has passed.
  const std::vector<std::optional<PageRef>>& pages(uint32_t group) const { return groups_[group].pages; }

  // Gives up the room for all positions from `tokens` on: rejected drafts, a conversation taken back. What a
  // window had already passed does not come back: a window group can be continued from `tokens` only if the
  // window before it is still there, or if tokens is 0.
  void truncate(uint32_t tokens, uint32_t page_tokens);

 private:
  friend class KvCache;
  struct Group {
    std::vector<std::optional<PageRef>> pages;
    uint32_t first_page = 0;  // pages before this one were freed behind the window
  };
  std::vector<Group> groups_;
  uint32_t reserved_tokens_ = 0;
};

}  // namespace quire
