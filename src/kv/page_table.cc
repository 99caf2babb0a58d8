#include "kv/page_table.h"

#include <algorithm>

namespace quire {

void PageTable::truncate(uint32_t tokens, uint32_t page_tokens) {
  if (tokens >= reserved_tokens_) return;
  const uint32_t pages = (tokens + page_tokens - 1) / page_tokens;
  for (Group& group : groups_) {
    if (group.pages.size() > pages) group.pages.resize(pages);
    group.first_page = std::min(group.first_page, pages);
  }
  reserved_tokens_ = tokens;
}

}  // namespace quire
