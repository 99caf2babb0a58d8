#include "kv/kv_cache.h"

#include <algorithm>
#include <utility>

#include "base/check.h"

namespace quire {
namespace {

uint32_t pages_covering(uint32_t tokens, uint32_t page_tokens) {
  return (tokens + page_tokens - 1) / page_tokens;
}

}  // namespace

std::vector<uint32_t> pages_for(const KvLayout& layout, uint32_t tokens, uint32_t chunk, uint32_t sequences) {
  std::vector<uint32_t> pages;
  for (const KvGroupLayout& group : layout.groups) {
    uint32_t per_sequence = pages_covering(tokens, group.page_tokens);
    if (group.window > 0) {
      // The span that is alive while a chunk runs may start and end inside a page.
      per_sequence = std::min(per_sequence, pages_covering(group.window + chunk, group.page_tokens) + 1);
    }
    pages.push_back(per_sequence * sequences);
  }
  return pages;
}

size_t kv_bytes(const KvLayout& layout, std::span<const uint32_t> pages_per_group) {
  size_t bytes = 0;
  for (size_t g = 0; g < pages_per_group.size(); ++g)
    bytes += pages_per_group[g] * layout.groups[g].page_bytes;
  return bytes;
}

KvCache::KvCache(KvLayout layout, std::span<const uint32_t> pages_per_group, const Allocate& allocate)
    : layout_(std::move(layout)) {
  CHECK(!layout_.groups.empty());
  CHECK(pages_per_group.size() == layout_.groups.size());
  for (size_t g = 0; g < layout_.groups.size(); ++g) {
    const size_t page_bytes = layout_.groups[g].page_bytes;
    pools_.push_back(std::make_unique<PagePool>(allocate(page_bytes * pages_per_group[g]), page_bytes,
                                                pages_per_group[g]));
  }
}

bool KvCache::reserve(PageTable& table, uint32_t tokens) {
  if (tokens <= table.reserved_tokens_) return true;
  const uint32_t pages = pages_covering(tokens, page_tokens());
  for (size_t g = 0; g < pools_.size(); ++g) {
    const size_t held = table.groups_[g].pages.size();
    if (pages > held && pages - held > pools_[g]->free_pages()) return false;
  }
  for (size_t g = 0; g < pools_.size(); ++g) {
    auto& held = table.groups_[g].pages;
    while (held.size() < pages) held.push_back(pools_[g]->take());
  }
  table.reserved_tokens_ = tokens;
  return true;
}

void KvCache::release_behind_window(PageTable& table, uint32_t next) {
  for (size_t g = 0; g < pools_.size(); ++g) {
    const uint32_t window = layout_.groups[g].window;
    if (window == 0 || next + 1 <= window) continue;
    PageTable::Group& group = table.groups_[g];
    const uint32_t first_visible = next + 1 - window;
    const uint32_t first_page =
        std::min<uint32_t>(first_visible / page_tokens(), uint32_t(group.pages.size()));
    for (; group.first_page < first_page; ++group.first_page) group.pages[group.first_page].reset();
  }
}

KvCache::Stats KvCache::stats() const {
  Stats stats;
  for (const auto& pool : pools_) {
    stats.pages_in_use += pool->pages_in_use();
    stats.peak_pages += pool->peak_pages();
    stats.bytes_in_use += pool->pages_in_use() * pool->page_bytes();
    stats.peak_bytes += pool->peak_pages() * pool->page_bytes();
    stats.capacity_bytes += pool->capacity() * pool->page_bytes();
  }
  return stats;
}

std::vector<KvGroupView> KvCache::view(std::span<const PageTable* const> tables, FlatTables& flat) const {
  const size_t groups = pools_.size();
  flat.page_ids.assign(groups, {});
  flat.table_begin.assign(groups, {});
  std::vector<KvGroupView> views;
  for (size_t g = 0; g < groups; ++g) {
    for (const PageTable* table : tables) {
      flat.table_begin[g].push_back(uint32_t(flat.page_ids[g].size()));
      for (const auto& page : table->pages(uint32_t(g))) {
        flat.page_ids[g].push_back(page ? page->id().value : kNoPage);
      }
    }
    views.push_back({&layout_.groups[g], pools_[g]->data(), flat.page_ids[g], flat.table_begin[g]});
  }
  return views;
}

void KvCache::check_invariants() const {
  for (const auto& pool : pools_) pool->check_invariants();
}

}  // namespace quire
