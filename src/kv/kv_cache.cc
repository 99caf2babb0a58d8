#include "kv/kv_cache.h"

#include <algorithm>
#include <utility>

#include <fmt/format.h>

#include "base/check.h"
#include "kv/tiers/disk_tier.h"
#include "kv/tiers/host_tier.h"
#include "kv/tiers/remote_tier.h"

namespace quire {

std::vector<uint32_t> pages_for(const KvLayout& layout, SequenceSize size, uint32_t chunk,
                                uint32_t sequences) {
  std::vector<uint32_t> pages;
  for (const KvGroupLayout& group : layout.groups) {
    uint32_t per_sequence = group.pages_covering(group.keeps_all() ? size.rows() : size.tokens);
    // The span that is alive while a chunk runs may start and end inside a page.
    if (group.is_state)
      per_sequence = kStatesHeld;
    else if (!group.keeps_all())
      per_sequence = std::min(per_sequence, group.pages_covering(size_t(group.window) + chunk) + 1);
    pages.push_back(per_sequence * sequences);
  }
  return pages;
}

std::vector<uint32_t> pages_within(const KvLayout& layout, size_t bytes, uint32_t chunk, uint32_t sequences,
                                   size_t state_bytes) {
  uint64_t states = 0;
  if (layout.has_states()) {
    states = state_bytes > 0 ? state_bytes / layout.state_bytes()
                             : std::min<uint64_t>(uint64_t(sequences) * kStatesHeld + kStatesKept,
                                                  bytes / 2 / layout.state_bytes());
    states = std::max<uint64_t>(states, kStatesHeld);
  }
  const auto pages_of = [&](uint64_t nodes) {
    std::vector<uint32_t> pages;
    for (const KvGroupLayout& group : layout.groups) {
      uint64_t count = nodes * (layout.node_tokens / group.page_tokens);
      if (group.is_state) {
        count = nodes > 0 ? states : 0;
      } else if (!group.keeps_all()) {
        const uint64_t span = group.pages_covering(size_t(group.window) + chunk) + 1;
        count = std::min(count, std::max(span, std::min(count / 2, sequences * span + count / 4)));
      }
      pages.push_back(uint32_t(count));
    }
    return pages;
  };
  uint64_t fits = 0, too_many = 1;
  while (too_many < (uint64_t(1) << 31) && kv_bytes(layout, pages_of(too_many)) <= bytes) too_many *= 2;
  while (fits + 1 < too_many) {
    const uint64_t middle = (fits + too_many) / 2;
    (kv_bytes(layout, pages_of(middle)) <= bytes ? fits : too_many) = middle;
  }
  return pages_of(fits);
}

size_t kv_bytes(const KvLayout& layout, std::span<const uint32_t> pages_per_group) {
  size_t bytes = 0;
  for (size_t g = 0; g < pages_per_group.size(); ++g)
    bytes += pages_per_group[g] * layout.groups[g].page_bytes;
  return bytes;
}

std::string PrefixMiss::text() const {
  switch (why) {
    case Why::nothing:
      return "all of it was cached";
    case Why::off:
      return "sharing is off";
    case Why::never_seen:
      return "never seen";
    case Why::ended:
      return fmt::format("new from token {} on", position);
    case Why::differs:
      return fmt::format("differs at token {}", position);
    case Why::evicted:
      return fmt::format("evicted {:.0f} s ago from token {} on", evicted_seconds_ago, position);
    case Why::window:
      return fmt::format("the window layers' pages before token {} are gone", position);
    case Why::state:
      return fmt::format("state at token {}; {} tokens computed", position, known - position);
    case Why::no_room:
      break;
  }
  return fmt::format("no page was free to copy to at token {}", position);
}

KvCache::KvCache(KvLayout layout, std::span<const uint32_t> pages_per_group, const KvCacheOptions& options)
    : layout_(std::move(layout)),
      options_(options),
      index_(layout_.node_pages.size(), layout_.node_tokens, options.salt),
      news_(layout_, BlockPlace::memory) {
  CHECK(!layout_.groups.empty());
  CHECK(pages_per_group.size() == layout_.groups.size());
  for (size_t g = 0; g < layout_.groups.size(); ++g) {
    pools_.push_back(std::make_unique<PagePool>(pages_per_group[g]));
    published_as_.emplace_back(pages_per_group[g]);
    last_event_.emplace_back(pages_per_group[g]);
    host_copies_.emplace_back(pages_per_group[g]);
  }
}

std::vector<uint32_t> KvCache::pages_per_group() const {
  std::vector<uint32_t> pages;
  for (const auto& pool : pools_) pages.push_back(pool->capacity());
  return pages;
}

KvMoves KvCache::take_moves() {
  on_their_way_ += moves_.list.size();
  return std::exchange(moves_, {});
}

void KvCache::moved(const KvMoves& made) {
  CHECK(made.list.size() <= on_their_way_);
  on_their_way_ -= made.list.size();
  for (const KvMove& move : made.list) {
    if (move.stored_as != 0 && tier_ != nullptr) tier_->filled(move.stored_as);
    if (move.sent_as != 0 && remote_ != nullptr) remote_->filled(move.sent_as);
    if (move.host_slot != KvMove::kNoSlot && host_ != nullptr) host_->filled(move.group, move.host_slot);
  }
}

void KvCache::record(KvEventKind kind, uint32_t group, PageId page, uint32_t index, SequenceId sequence) {
  last_event_[group][page.value] = Clock::now();
  events_.add({last_event_[group][page.value], kind, group, page, index, sequence});
}

// ---- room --------------------------------------------------------------------------------------------------------

void KvCache::evict(uint32_t group, PageId page) {
  const auto [id, node_page] = published_as_[group][page.value];
  PrefixIndex::Node& node = index_.node(id);
  CHECK(node.pages[node_page] == page);
  if (!layout_.groups[group].is_state) index_.remember_evicted(id, Clock::now());
  if (node.tokens.size() == node_tokens() && node.salt.pruned == 0) {
    if (host_ != nullptr) {
      store_in_host(node_page, page, id);
    } else if (tier_ != nullptr) {
      store_on_disk(node_page, page, id);
    }
  }
  news_.goes(index_, id, node_page);
  node.pages[node_page].reset();
  pools_[group]->unpublish(page);
  record(KvEventKind::evicted, group, page, layout_.page_index(node_page, node.depth), {});
  index_.prune(id);
}

bool KvCache::make_free(uint32_t group, uint32_t pages) {
  PagePool& pool = *pools_[group];
  if (pages > pool.free_pages() + pool.cached_pages()) return false;
  while (pool.free_pages() < pages) evict(group, *pool.least_recently_used());
  return true;
}

bool KvCache::reserve(PageTable& table, uint32_t tokens) {
  const uint32_t states = states_missing(table);
  if (tokens <= table.reserved_tokens_ && states == 0) return true;
  const auto wanted = [&](size_t g) {
    return layout_.groups[g].pages_covering(tokens + table.groups_[g].row_shift);
  };
  const auto missing = [&](size_t g) {
    if (g == layout_.states) return states;
    const size_t held = table.groups_[g].pages.size();
    return wanted(g) > held ? uint32_t(wanted(g) - held) : 0;
  };
  for (size_t g = 0; g < pools_.size(); ++g) {
    if (missing(g) > pools_[g]->free_pages() + pools_[g]->cached_pages()) return false;
  }
  for (uint32_t g = 0; g < pools_.size(); ++g) {
    CHECK(make_free(g, missing(g)));
    if (g == layout_.states) {
      take_states(table, states);
      continue;
    }
    auto& held = table.groups_[g].pages;
    while (held.size() < wanted(g)) {
      held.push_back(pools_[g]->take());
      record(KvEventKind::reserved, g, held.back()->id(), uint32_t(held.size() - 1), table.owner_);
    }
  }
  table.reserved_tokens_ = std::max(table.reserved_tokens_, tokens);
  return true;
}

bool KvCache::could_hold(SequenceSize size, uint32_t chunk) const {
  const std::vector<uint32_t> pages = pages_for(layout_, size, chunk, 1);
  for (size_t g = 0; g < pools_.size(); ++g) {
    if (pages[g] > pools_[g]->capacity()) return false;
  }
  return true;
}

void KvCache::give_up(PageTable& table, uint32_t group, uint32_t index, KvEventKind kind) {
  std::optional<PageRef>& page = table.groups_[group].pages[index];
  if (!page) return;
  record(kind, group, page->id(), index, table.owner_);
  page.reset();
}

void KvCache::release_behind_window(PageTable& table, uint32_t next) {
  for (uint32_t g = 0; g < pools_.size(); ++g) {
    PageTable::Group& group = table.groups_[g];
    const uint32_t first_page = std::min<uint32_t>(layout_.groups[g].first_page_seen(next + group.row_shift),
                                                   uint32_t(group.pages.size()));
    for (; group.first_page < first_page; ++group.first_page)
      give_up(table, g, group.first_page, KvEventKind::released);
  }
}

void KvCache::truncate(PageTable& table, uint32_t rows) const {
  if (rows >= table.reserved_tokens_) return;
  CHECK(table.published_ * node_tokens() <= rows && !table.pruned_);
  end_at(table, rows);
}

void KvCache::forget_everything() {
  ++age_;
  moves_.clear();
  aside_.clear();
  arriving_.clear();
  bytes_arriving_ = on_their_way_ = 0;
  asides_made_ = asides_asked_;
  index_.forget_all();
  documents_.clear();
  for (uint32_t g = 0; g < pools_.size(); ++g) {
    pools_[g]->forget_all();
    std::ranges::fill(published_as_[g], Published{});
    std::ranges::fill(host_copies_[g], HostCopy{});
  }
  if (host_ != nullptr) host_->forget_all();
  if (tier_ != nullptr) tier_->forget_all();
  if (remote_ != nullptr) remote_->forget_all();
  news_.all_went();
}

void KvCache::tell(BlockListener* listener) {
  news_.tell(listener);
  if (host_ != nullptr) host_->tell(listener);
  if (tier_ != nullptr) tier_->tell(listener);
  if (remote_ != nullptr) remote_->tell(listener);
}

// ---- views -------------------------------------------------------------------------------------------------------

KvCache::Stats KvCache::stats() const {
  Stats stats;
  for (uint32_t g = 0; g < pools_.size(); ++g) {
    const auto& pool = pools_[g];
    const size_t bytes = page_bytes(g);
    stats.capacity_pages += pool->capacity();
    stats.held_pages += pool->held_pages();
    stats.cached_pages += pool->cached_pages();
    stats.free_pages += pool->free_pages();
    stats.peak_held_pages += pool->peak_held_pages();
    stats.capacity_bytes += pool->capacity() * bytes;
    stats.held_bytes += pool->held_pages() * bytes;
    stats.cached_bytes += pool->cached_pages() * bytes;
    stats.peak_held_bytes += pool->peak_held_pages() * bytes;
    for (uint32_t page = 0; page < pool->capacity(); ++page) {
      const uint32_t shares = pool->shares(PageId{page});
      if (shares > 1) stats.shared_bytes += (shares - 1) * bytes;
    }
  }
  return stats;
}

KvCache::GroupStats KvCache::group_stats(uint32_t group) const {
  const PagePool& pool = *pools_[group];
  return {pool.capacity(), pool.held_pages(), pool.cached_pages(), pool.free_pages()};
}

std::vector<KvCache::PageState> KvCache::pages_in_use(uint32_t group, size_t most) const {
  const PagePool& pool = *pools_[group];
  std::vector<PageState> pages;
  pages.reserve(std::min<size_t>(most, pool.capacity() - pool.free_pages()));
  for (uint32_t i = 0; i < pool.capacity() && pages.size() < most; ++i) {
    const PageId page{i};
    PageState state{.page = page,
                    .shares = pool.shares(page),
                    .published = pool.is_published(page),
                    .used = last_event_[group][i]};
    if (state.shares == 0 && !state.published) continue;
    if (state.published) {
      const Published& as = published_as_[group][i];
      const PrefixIndex::Node& node = index_.node(as.node);
      const uint32_t page_tokens = layout_.groups[group].page_tokens;
      state.index = layout_.page_index(as.node_page, node.depth);
      state.tokens = std::min(
          page_tokens, uint32_t(node.tokens.size()) - layout_.node_pages[as.node_page].index * page_tokens);
      state.salt = node.salt;
    }
    pages.push_back(state);
  }
  return pages;
}

KvTables KvCache::flatten(std::span<const PageTable* const> tables) const {
  KvTables flat;
  for (size_t g = 0; g < pools_.size(); ++g) {
    KvTables::Group& group = flat.groups.emplace_back();
    for (const PageTable* table : tables) {
      group.table_begin.push_back(uint32_t(group.page_ids.size()));
      if (g == layout_.states) {
        const PageTable::States& states = table->states_;
        group.page_ids.insert(group.page_ids.end(), states.pages.begin(), states.pages.end());
        group.state_rows.insert(group.state_rows.end(), states.rows.begin(), states.rows.end());
        continue;
      }
      for (const auto& page : table->pages(uint32_t(g)))
        group.page_ids.push_back(page ? page->id().value : kNoPage);
    }
    const auto is_shifted = [&](const PageTable* table) { return table->groups_[g].row_shift > 0; };
    if (std::ranges::any_of(tables, is_shifted)) {
      for (const PageTable* table : tables) group.row_shift.push_back(table->groups_[g].row_shift);
    }
    const auto is_unequal = [&](const PageTable* table) { return !table->groups_[g].head_cells.empty(); };
    if (!std::ranges::any_of(tables, is_unequal)) continue;
    for (const PageTable* table : tables) add_head_cells(uint32_t(g), *table, group.unequal);
  }
  return flat;
}

void KvCache::check_invariants() const {
  for (const auto& pool : pools_) pool->check_invariants();
  index_.check_invariants();
  for (uint32_t g = 0; g < pools_.size(); ++g) {
    for (uint32_t page = 0; page < pools_[g]->capacity(); ++page) {
      if (!pools_[g]->is_published(PageId{page})) continue;
      const Published& as = published_as_[g][page];
      const PrefixIndex::Node& node = index_.node(as.node);
      CHECK(layout_.node_pages[as.node_page].group == g);
      CHECK(node.alive && node.pages[as.node_page] == PageId{page});
      CHECK(layout_.reaches(as.node_page, node.tokens.size()));
    }
  }
  size_t bytes = 0;
  for (const Arriving& one : arriving_) {
    CHECK(one.ticket > asides_made_ && one.ticket <= asides_asked_ && index_.node(one.node).holders > 0);
    bytes += layout_.node_page_bytes(one.node_page);
  }
  CHECK(bytes == bytes_arriving_);
}

}  // namespace quire
