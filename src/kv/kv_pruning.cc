#include "base/check.h"
#include "kv/kv_cache.h"

// How a sequence gives up rows in the middle: those that stay are moved together.

namespace quire {
namespace {

// Copies runs of consecutive rows at once; `from` and `to` say where a row is.
template <class From, class To, class Copy>
void gather_rows(std::span<const uint32_t> rows, uint32_t page_tokens, size_t row_bytes, From from, To to,
                 Copy copy) {
  for (uint32_t i = 0; i < rows.size();) {
    uint32_t count = 1;
    while (i + count < rows.size() && rows[i + count] == rows[i] + count &&
           (rows[i] + count) % page_tokens != 0 && (i + count) % page_tokens != 0)
      ++count;
    copy(to(i), from(rows[i]), count * row_bytes);
    i += count;
  }
}

}  // namespace

void KvCache::gather(uint32_t g, const KeptRows& kept, std::span<const std::optional<PageRef>> from,
                     std::span<const std::optional<PageRef>> to) {
  const auto page_of = [&](std::span<const std::optional<PageRef>> of, uint32_t row) {
    return pools_[g]->data(of[row / page_tokens()]->id());
  };
  for (size_t l = 0; l < layout_.places.size(); ++l) {
    if (layout_.places[l].group != g) continue;
    const KvLayerLayout& layer = layout_.groups[g].layers[layout_.places[l].slot];
    for (uint32_t h = 0; h < layer.shape.kv_heads; ++h) {
      const std::vector<uint32_t>& rows = kept.of_head[l * layer.shape.kv_heads + h];
      CHECK(rows.size() == kept.count);
      const auto key = [&](std::span<const std::optional<PageRef>> of) {
        return [&, of](uint32_t row) { return page_of(of, row) + layer.key_offset(h, row % page_tokens()); };
      };
      const auto value = [&](std::span<const std::optional<PageRef>> of) {
        return [&, of](uint32_t row) {
          return page_of(of, row) + layer.value_offset(h, row % page_tokens(), page_tokens());
        };
      };
      gather_rows(rows, page_tokens(), layer.key_row_bytes, key(from), key(to), memory_.copy);
      gather_rows(rows, page_tokens(), layer.value_row_bytes, value(from), value(to), memory_.copy);
    }
  }
}

bool KvCache::keep_rows(PageTable& table, uint32_t computed, const KeptRows& kept) {
  CHECK(!table.pruned_ && kept.count > 0 && kept.count < computed && computed <= table.reserved_tokens_);
  const uint32_t pages = (kept.count + page_tokens() - 1) / page_tokens();
  const auto has_room = [&](uint32_t g) {
    return pages <= pools_[g]->free_pages() + pools_[g]->cached_pages();
  };
  const auto owns_target = [&](uint32_t g) {
    for (uint32_t i = 0; i < pages; ++i) {
      if (pools_[g]->shares(table.groups_[g].pages[i]->id()) > 1) return false;
    }
    return true;
  };
  for (uint32_t g = 0; g < pools_.size(); ++g) {
    if (layout_.groups[g].window == 0 && !has_room(g) && !owns_target(g)) return false;
  }
  for (uint32_t g = 0; g < pools_.size(); ++g) {
    if (layout_.groups[g].window > 0) continue;
    PageTable::Group& group = table.groups_[g];
    std::vector<std::optional<PageRef>> to;
    if (has_room(g)) {
      CHECK(make_free(g, pages));
      for (uint32_t i = 0; i < pages; ++i) {
        to.push_back(pools_[g]->take());
        record(KvEventKind::copied, g, to.back()->id(), i, table.owner_);
      }
      gather(g, kept, group.pages, to);
    } else {
      // In its own pages, which nobody may find any more. A row never moves up, so none is lost before it is read.
      for (uint32_t i = 0; i < pages; ++i) {
        if (pools_[g]->is_published(group.pages[i]->id())) evict(g, group.pages[i]->id());
        to.push_back(group.pages[i]);
      }
      gather(g, kept, group.pages, to);
    }
    for (uint32_t i = 0; i < group.pages.size(); ++i) give_up(table, g, i, KvEventKind::pruned);
    group.pages = std::move(to);
  }
  touch_chain(table.node_);
  if (table.node_ != PrefixIndex::kRoot) index_.drop(table.node_);
  table.node_ = PrefixIndex::kRoot;
  table.published_ = 0;
  table.window_shift_ = computed - kept.count;
  table.reserved_tokens_ = kept.count;
  table.pruned_ = true;
  return true;
}

}  // namespace quire
