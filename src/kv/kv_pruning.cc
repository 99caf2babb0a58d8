#include <algorithm>
#include <numeric>

#include "base/check.h"
#include "kv/kv_cache.h"

// How a sequence gives up rows in the middle: those that stay are moved together. Heads may keep unequal numbers of rows, but
// they differ by whole pages. So the rows of all of them fill as many pages as equal numbers would, and they begin a new page
// at the same token: only the cells of the pages that are filled now are given out anew.

namespace quire {
namespace {

using PageList = std::span<const std::optional<PageRef>>;

// Lists the moves of one head's rows from the pages of a sequence to others, or within them.
class HeadMover {
 public:
  HeadMover(const KvLayout& layout, uint32_t group, const KvLayerLayout& layer, uint32_t head, KvMoves& moves)
      : index_(group), group_(layout.groups[group]), layer_(layer), head_(head), moves_(moves) {}

  // The i-th row that stays is rows[i] of `from` and goes to cells[i / page_tokens] of `to`, for i from `begin` to `end`.
  void move(std::span<const uint32_t> rows, uint32_t begin, uint32_t end, PageList from, PageList to,
            std::span<const uint32_t> cells) const {
    const uint32_t page_tokens = group_.page_tokens;
    const size_t keys = page_tokens * layer_.key_row_bytes;
    for (uint32_t i = begin, count = 1; i < end; i += count) {
      const uint32_t row = rows[i], in_page = row % page_tokens, to_in_page = i % page_tokens;
      const uint32_t most = std::min({page_tokens - in_page, page_tokens - to_in_page, end - i});
      for (count = 1; count < most && rows[i + count] == row + count;) ++count;  // they go at once
      const uint64_t source = cell_at(from, row / page_tokens * group_.cells() + own_cell());
      const uint64_t target = cell_at(to, cells[i / page_tokens]);
      add(source + in_page * layer_.key_row_bytes, target + to_in_page * layer_.key_row_bytes,
          count * layer_.key_row_bytes);
      add(source + keys + in_page * layer_.value_row_bytes,
          target + keys + to_in_page * layer_.value_row_bytes, count * layer_.value_row_bytes);
    }
  }

 private:
  uint32_t own_cell() const { return layer_.first_cell + head_; }
  void add(uint64_t from, uint64_t to, size_t bytes) const {
    moves_.list.push_back({.group = index_, .bytes = bytes, .from = from, .to = to});
  }
  uint64_t cell_at(PageList pages, uint32_t cell) const {
    const uint32_t in_page = cell % group_.cells();
    // Of layers whose cells differ in size every head stays in its own.
    const size_t offset = in_page == own_cell() ? layer_.key_offset(head_, 0) : in_page * layer_.head_bytes;
    return pages[cell / group_.cells()]->id().value * group_.page_bytes + offset;
  }

  const uint32_t index_;
  const KvGroupLayout& group_;
  const KvLayerLayout& layer_;
  const uint32_t head_;
  KvMoves& moves_;
};

// The cells of heads that want so many each, of as many pages as that fills. A head has its own cell of a page where it needs
// it; what it wants beyond the last page goes to the cells that others leave, the first ones first.
std::vector<std::vector<uint32_t>> give_out_cells(std::span<const uint32_t> wanted, uint32_t pages) {
  const uint32_t heads = uint32_t(wanted.size());
  CHECK(std::accumulate(wanted.begin(), wanted.end(), uint64_t(0)) == uint64_t(pages) * heads);
  std::vector<uint32_t> left;
  for (uint32_t page = 0; page < pages; ++page) {
    for (uint32_t head = 0; head < heads; ++head) {
      if (wanted[head] <= page) left.push_back(page * heads + head);
    }
  }
  std::vector<std::vector<uint32_t>> cells(heads);
  size_t taken = 0;
  for (uint32_t head = 0; head < heads; ++head) {
    for (uint32_t page = 0; page < wanted[head]; ++page)
      cells[head].push_back(page < pages ? page * heads + head : left[taken++]);
  }
  return cells;
}

}  // namespace

std::vector<std::vector<uint32_t>> KvCache::cells_of(uint32_t g, uint32_t computed,
                                                     const KeptRows& kept) const {
  const KvPolicy& policy = layout_.groups[g];
  std::vector<uint32_t> wanted;
  size_t head = 0;
  bool equal = true;
  for (const auto& streams : layout_.places) {
    if (streams.empty() || layout_.at(streams.front()).shape.state) continue;  // there are no rows to choose
    CHECK(streams.size() == 1 && layout_.at(streams.front()).shape.stride == 1);
    const KvLayout::Place& place = streams.front();
    const uint32_t heads = layout_.at(place).shape.kv_heads;
    for (uint32_t h = 0; h < heads; ++h, ++head) {
      if (place.group != g) continue;
      const size_t rows = kept.of_head[head].size();
      CHECK(rows > 0 && rows <= computed && rows % policy.page_tokens == kept.count % policy.page_tokens);
      wanted.push_back(policy.pages_covering(rows));
      equal &= rows == kept.count;
    }
  }
  CHECK(equal || layout_.groups[g].has_equal_cells());
  return give_out_cells(wanted, policy.pages_covering(kept.count));
}

void KvCache::gather(uint32_t g, const KeptRows& kept, PageList from, PageList to,
                     std::span<const std::vector<uint32_t>> cells) {
  const uint32_t here = uint32_t(to.size()) * layout_.groups[g].page_tokens;
  // First what stays in its head's own cells, where a row never moves up. Then what goes to the cells of others: it comes from
  // pages that were not written, and those others' rows are gone from there.
  for (const bool elsewhere : {false, true}) {
    size_t head = 0;
    for (const auto& streams : layout_.places) {
      if (streams.empty() || layout_.at(streams.front()).shape.state) continue;
      const KvLayout::Place& place = streams.front();
      const KvLayerLayout& layer = layout_.at(place);
      for (uint32_t h = 0; h < layer.shape.kv_heads; ++h, ++head) {
        if (place.group != g) continue;
        const std::vector<uint32_t>& rows = kept.of_head[head];
        const uint32_t all = uint32_t(rows.size()), middle = std::min(all, here);
        HeadMover(layout_, g, layer, h, moves_)
            .move(rows, elsewhere ? middle : 0, elsewhere ? all : middle, from, to,
                  cells[layer.first_cell + h]);
      }
    }
  }
}

void KvCache::shift_state(PageTable& table, uint32_t computed, uint32_t rows) {
  PageTable::States& states = table.states_;
  CHECK(states.ends.size() == 1 && states.ends.back().at == computed);
  states.ends.back().at = rows;  // it knows of all tokens, whichever have rows
  states.kept.clear();
  states.wanted.clear();
}

bool KvCache::keep_rows(PageTable& table, uint32_t computed, const KeptRows& kept) {
  CHECK(!table.pruned_ && kept.count > 0 && kept.count < computed && computed <= table.reserved_tokens_);
  const auto pages_in = [&](uint32_t g) { return layout_.groups[g].pages_covering(kept.count); };
  const auto has_room = [&](uint32_t g) {
    return pages_in(g) <= pools_[g]->free_pages() + pools_[g]->cached_pages();
  };
  const auto owns_target = [&](uint32_t g) {
    for (uint32_t i = 0; i < pages_in(g); ++i) {
      if (pools_[g]->shares(table.groups_[g].pages[i]->id()) > 1) return false;
    }
    return true;
  };
  for (uint32_t g = 0; g < pools_.size(); ++g) {
    if (layout_.groups[g].keeps_all() && !has_room(g) && !owns_target(g)) return false;
  }
  for (uint32_t g = 0; g < pools_.size(); ++g) {
    PageTable::Group& group = table.groups_[g];
    const uint32_t pages = pages_in(g);
    if (g == layout_.states) {
      shift_state(table, computed, kept.count);
      continue;
    }
    if (!layout_.groups[g].keeps_all()) {
      group.row_shift = computed - kept.count;
      continue;
    }
    std::vector<std::vector<uint32_t>> cells = cells_of(g, computed, kept);
    std::vector<std::optional<PageRef>> to;
    if (has_room(g)) {
      CHECK(make_free(g, pages));
      for (uint32_t i = 0; i < pages; ++i) {
        to.push_back(pools_[g]->take());
        record(KvEventKind::copied, g, to.back()->id(), i, table.owner_);
      }
    } else {
      // In its own pages, which nobody may find any more.
      for (uint32_t i = 0; i < pages; ++i) {
        if (pools_[g]->is_published(group.pages[i]->id())) evict(g, group.pages[i]->id());
        to.push_back(group.pages[i]);
      }
    }
    gather(g, kept, group.pages, to, cells);
    for (uint32_t i = 0; i < group.pages.size(); ++i) give_up(table, g, i, KvEventKind::pruned);
    group.pages = std::move(to);
    const auto is_own = [&](const auto& of_head) { return of_head.size() == pages; };
    if (!std::ranges::all_of(cells, is_own)) group.head_cells = std::move(cells);
  }
  touch_chain(table.node_);
  if (table.node_ != PrefixIndex::kRoot) index_.drop(table.node_);
  table.node_ = PrefixIndex::kRoot;
  table.published_ = 0;
  table.reserved_tokens_ = kept.count;
  table.pruned_ = true;
  return true;
}

void KvCache::add_head_cells(uint32_t g, const PageTable& table, KvUnequalHeads<KvOwned>& flat) const {
  const PageTable::Group& group = table.groups_[g];
  if (group.head_cells.empty()) {
    flat.heads_begin.push_back(kEqualHeads);
    return;
  }
  flat.heads_begin.push_back(uint32_t(flat.heads.size()));
  const uint32_t heads = uint32_t(group.head_cells.size());
  size_t given = 0;
  for (const auto& cells : group.head_cells) given += cells.size();
  const uint32_t pruned_pages = uint32_t(given / heads);
  const auto add = [&](uint32_t page, uint32_t cell) {
    flat.cells.push_back(group.pages[page]->id().value * heads + cell);
  };
  for (uint32_t head = 0; head < heads; ++head) {
    const std::vector<uint32_t>& cells = group.head_cells[head];
    const int32_t more_pages = int32_t(cells.size()) - int32_t(pruned_pages);
    flat.heads.push_back({uint32_t(flat.cells.size()), more_pages * int32_t(layout_.groups[g].page_tokens)});
    for (const uint32_t cell : cells) add(cell / heads, cell % heads);
    for (uint32_t page = pruned_pages; page < group.pages.size(); ++page) add(page, head);
  }
}

}  // namespace quire
