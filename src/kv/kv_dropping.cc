#include <algorithm>

#include "base/check.h"
#include "kv/kv_cache.h"

// How a sequence lets go of rows as it grows. Nothing moves but the rows of the pages that are given up, each to the place of a row
// that goes: it costs the same however many rows stay.

namespace quire {
namespace {

// Calls visit(head, layer, layout of the layer, KV head) for the heads of a group that have rows, `head` counting those of all layers.
template <class Visit>
void for_each_head(const KvLayout& layout, uint32_t group, Visit&& visit) {
  size_t head = 0;
  for (uint32_t l = 0; l < layout.places.size(); ++l) {
    const auto& streams = layout.places[l];
    if (streams.empty() || layout.at(streams.front()).shape.state) continue;
    const KvLayerLayout& layer = layout.at(streams.front());
    for (uint32_t h = 0; h < layer.shape.kv_heads; ++h, ++head) {
      if (streams.front().group == group) visit(head, l, layer, h);
    }
  }
}

}  // namespace

std::vector<std::vector<bool>> KvCache::written_pages(const PageTable& table, const MovedRows& moved) const {
  std::vector<std::vector<bool>> written(pools_.size());
  for (uint32_t g = 0; g < pools_.size(); ++g) {
    if (g == layout_.states) continue;
    const KvGroupLayout& group = layout_.groups[g];
    const PageTable::Group& held = table.groups_[g];
    if (!group.keeps_all()) {
      written[g].assign(held.pages.size(), moved.window_back > 0);
      for (uint32_t i = 0; i < held.pages.size(); ++i) {
        if (!held.pages[i]) written[g][i] = false;
      }
      continue;
    }
    written[g].resize(group.pages_covering(moved.count));
    for_each_head(layout_, g, [&](size_t head, uint32_t, const KvLayerLayout&, uint32_t) {
      for (const MovedRows::Row& row : moved.of_head[head]) {
        CHECK(row.to < moved.count && row.from >= moved.count);
        written[g][row.to / group.page_tokens] = true;
      }
      if (moved.back.empty()) return;
      CHECK(moved.back[head].size() == moved.count);
      for (uint32_t row = 0; row < moved.count; ++row) {
        if (moved.back[head][row] > 0) written[g][row / group.page_tokens] = true;
      }
    });
  }
  return written;
}

void KvCache::make_own(PageTable& table, uint32_t g, uint32_t index) {
  std::optional<PageRef>& page = table.groups_[g].pages[index];
  const PageId was = page->id();
  const bool is_published = pools_[g]->is_published(was);
  if (pools_[g]->shares(was) == 1 && !is_published) return;
  if (pools_[g]->shares(was) == 1 && pools_[g]->free_pages() + pools_[g]->cached_pages() == 0) {
    evict(g, was);  // nobody may find it any more
    return;
  }
  CHECK(make_free(g, 1));
  PageRef own = *pools_[g]->take();
  moves_.list.push_back(
      {.group = g, .bytes = page_bytes(g), .from = place_of(g, was), .to = place_of(g, own.id())});
  record(KvEventKind::copied, g, own.id(), index, table.owner_);
  give_up(table, g, index, KvEventKind::released);
  page = std::move(own);
}

void KvCache::move_rows(const PageTable& table, const MovedRows& moved) {
  for (uint32_t g = 0; g < pools_.size(); ++g) {
    const KvGroupLayout& group = layout_.groups[g];
    if (g == layout_.states || !group.keeps_all()) continue;
    const uint32_t page_tokens = group.page_tokens;
    const auto& pages = table.groups_[g].pages;
    const auto page_at = [&](uint32_t row) { return place_of(g, pages[row / page_tokens]->id()); };
    for_each_head(layout_, g, [&](size_t head, uint32_t, const KvLayerLayout& layer, uint32_t h) {
      const std::vector<MovedRows::Row>& rows = moved.of_head[head];
      for (size_t i = 0, count = 1; i < rows.size(); i += count) {
        const uint32_t from = rows[i].from, to = rows[i].to;
        const uint32_t most =
            std::min(page_tokens - from % page_tokens, page_tokens - to % page_tokens);  // they go at once
        for (count = 1; count < most && i + count < rows.size() && rows[i + count].from == from + count &&
                        rows[i + count].to == to + count;)
          ++count;
        const auto add = [&](size_t bytes, size_t from_offset, size_t to_offset) {
          if (bytes == 0) return;
          moves_.list.push_back({.group = g,
                                 .bytes = bytes,
                                 .from = page_at(from) + from_offset,
                                 .to = page_at(to) + to_offset});
        };
        add(count * layer.key_row_bytes, layer.key_offset(h, from % page_tokens),
            layer.key_offset(h, to % page_tokens));
        add(count * layer.value_row_bytes, layer.value_offset(h, from % page_tokens),
            layer.value_offset(h, to % page_tokens));
      }
    });
  }
}

void KvCache::rotate_rows(const PageTable& table, const MovedRows& moved) {
  for (uint32_t g = 0; g < pools_.size(); ++g) {
    const KvGroupLayout& group = layout_.groups[g];
    if (g == layout_.states || (group.keeps_all() ? moved.back.empty() : moved.window_back == 0)) continue;
    const auto& pages = table.groups_[g].pages;
    for_each_head(layout_, g, [&](size_t head, uint32_t l, const KvLayerLayout& layer, uint32_t h) {
      for (uint32_t index = 0; index < pages.size(); ++index) {
        if (!pages[index]) continue;
        const size_t at = moves_.back.size();
        if (group.keeps_all()) {
          const auto of_page =
              std::span(moved.back[head]).subspan(size_t(index) * group.page_tokens, group.page_tokens);
          if (std::ranges::all_of(of_page, [](uint32_t back) { return back == 0; })) continue;
          moves_.back.insert(moves_.back.end(), of_page.begin(), of_page.end());
        } else {
          moves_.back.insert(moves_.back.end(), group.page_tokens, moved.window_back);
        }
        const uint64_t place = place_of(g, pages[index]->id()) + layer.key_offset(h, 0);
        moves_.list.push_back({.group = g,
                               .bytes = group.page_tokens * layer.key_row_bytes,
                               .from = place,
                               .to = place,
                               .rotated_rows = group.page_tokens,
                               .layer = l,
                               .back_at = at});
      }
    });
  }
}

void KvCache::forget_prefix(PageTable& table) {
  touch_chain(table.node_);
  if (table.node_ != PrefixIndex::kRoot) index_.drop(table.node_);
  table.node_ = PrefixIndex::kRoot;
  table.published_ = 0;
  table.pruned_ = true;
}

bool KvCache::drop_rows(PageTable& table, uint32_t rows, const MovedRows& moved) {
  CHECK(moved.count > 0 && moved.count < rows && rows <= table.reserved_tokens_);
  CHECK(rows % node_tokens() == 0 && moved.count % node_tokens() == 0);
  const std::vector<std::vector<bool>> written = written_pages(table, moved);
  for (uint32_t g = 0; g < pools_.size(); ++g) {
    uint32_t shared = 0;
    for (uint32_t i = 0; i < written[g].size(); ++i)
      shared += written[g][i] && pools_[g]->shares(table.groups_[g].pages[i]->id()) > 1 ? 1 : 0;
    if (shared > pools_[g]->free_pages() + pools_[g]->cached_pages()) return false;
  }
  forget_prefix(table);
  for (uint32_t g = 0; g < pools_.size(); ++g) {
    // First what others hold: there is room for a copy of each, and for what is only published there may be.
    for (const bool held_by_others : {true, false}) {
      for (uint32_t i = 0; i < written[g].size(); ++i) {
        if (!written[g][i]) continue;
        if ((pools_[g]->shares(table.groups_[g].pages[i]->id()) > 1) == held_by_others) make_own(table, g, i);
      }
    }
  }
  move_rows(table, moved);
  for (uint32_t g = 0; g < pools_.size(); ++g) {
    PageTable::Group& group = table.groups_[g];
    if (g == layout_.states) {
      shift_state(table, rows, moved.count);
    } else if (!layout_.groups[g].keeps_all()) {
      group.row_shift += rows - moved.count;
    } else {
      CHECK(group.head_cells.empty());
      const uint32_t pages = layout_.groups[g].pages_covering(moved.count);
      for (uint32_t i = pages; i < group.pages.size(); ++i) give_up(table, g, i, KvEventKind::pruned);
      group.pages.resize(pages);
    }
  }
  rotate_rows(table, moved);
  table.reserved_tokens_ = moved.count;
  return true;
}

}  // namespace quire
