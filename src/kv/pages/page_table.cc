#include "kv/pages/page_table.h"

#include "base/check.h"

namespace quire {

PageTable::PageTable(const PageTable& other)
    : owner_(other.owner_),
      salt_(other.salt_),
      groups_(other.groups_),
      states_(other.states_),
      reserved_tokens_(other.reserved_tokens_) {
  CHECK(other.published_ == 0 && other.node_ == PrefixIndex::kRoot && !other.pruned_);
}

void PageTable::clear() {
  for (Group& group : groups_) {
    group.pages.clear();
    group.first_page = group.row_shift = 0;
    group.head_cells.clear();
  }
  const std::optional<uint32_t> states = states_.group;
  states_ = {};
  states_.group = states;
  reserved_tokens_ = published_ = 0;
  pruned_ = false;
  node_ = PrefixIndex::kRoot;
}

}  // namespace quire
