#include <algorithm>
#include <utility>

#include "base/check.h"
#include "kv/kv_cache.h"

// How runs read and leave states, and which of those are kept where they can be found.
//
// A state is large, so a sequence has one that its next run begins with, one more where it may have to go back, and others can be
// found only where that is likely to be of use: at the last node of a prompt, where an answer ended, where texts part, and now
// and then on the way.

namespace quire {
namespace {

constexpr uint32_t kStateEvery = 4096;  // tokens: what is computed again at most, while there is room

}  // namespace

bool KvCache::is_own(const PageRef& page) const {
  const PagePool& pool = *pools_[*layout_.states];
  return pool.shares(page.id()) == 1 && !pool.is_published(page.id());
}

const PageRef* KvCache::state_at(const PageTable& table, uint32_t tokens) const {
  for (const auto* list : {&table.states_.ends, &table.states_.kept}) {
    for (const PageTable::State& state : *list) {
      if (state.at == tokens) return &state.page;
    }
  }
  return nullptr;
}

PrefixNodeId KvCache::node_at(const PageTable& table, uint32_t nodes) const {
  PrefixNodeId node = table.node_;
  for (uint32_t i = table.published_; i > nodes; --i) node = index_.node(node).parent;
  return node;
}

std::optional<PageId> KvCache::published_state(const PageTable& table, uint32_t tokens) const {
  if (!layout_.has_states()) return std::nullopt;
  if (const PageRef* own = state_at(table, tokens)) return own->id();
  const uint32_t nodes = tokens / node_tokens();
  if (nodes == 0 || tokens % node_tokens() != 0 || nodes > table.published_) return std::nullopt;
  const PrefixIndex::Node& node = index_.node(node_at(table, nodes));
  for (uint32_t n = 0; n < node_pages(); ++n) {
    if (layout_.node_pages[n].group == layout_.states) return node.pages[n];
  }
  return std::nullopt;
}

void KvCache::keep_state_at(PageTable& table, uint32_t tokens) const {
  if (!layout_.has_states() || !options_.sharing || tokens == 0 || tokens % node_tokens() != 0) return;
  std::vector<uint32_t>& wanted = table.states_.wanted;
  const auto place = std::ranges::lower_bound(wanted, tokens);
  if (place == wanted.end() || *place != tokens) wanted.insert(place, tokens);
}

bool KvCache::wants_state(const PageTable& table, uint32_t tokens) const {
  if (!options_.sharing || table.pruned_ || tokens == 0 || tokens % node_tokens() != 0) return false;
  const uint32_t every = std::max(kStateEvery / node_tokens(), 1u) * node_tokens();
  return tokens % every == 0 || std::ranges::binary_search(table.states_.wanted, tokens);
}

// ---- runs --------------------------------------------------------------------------------------------------------

void KvCache::give_up(PageTable& table, PageTable::State state) {
  if (is_own(state.page)) {
    table.states_.spare.push_back(std::move(state.page));
  } else {
    record(KvEventKind::released, *layout_.states, state.page.id(), state.at / node_tokens(), table.owner_);
  }
}

uint32_t KvCache::states_missing(PageTable& table) {
  if (!layout_.has_states()) return 0;
  PageTable::States& states = table.states_;
  // What a run that is on its way began with: it is sure by now, or nobody would ask for more.
  while (states.ends.size() > 1) {
    give_up(table, std::move(states.ends.front()));
    states.ends.erase(states.ends.begin());
  }
  const bool own = !states.ends.empty() && is_own(states.ends.back().page);
  const size_t has = states.spare.size() + (own ? 1 : 0);
  const size_t wants = own && options_.way_back ? 2 : 1;
  return wants > has ? uint32_t(wants - has) : 0;
}

void KvCache::take_states(PageTable& table, uint32_t pages) {
  for (uint32_t i = 0; i < pages; ++i) {
    table.states_.spare.push_back(*pools_[*layout_.states]->take());
    record(KvEventKind::reserved, *layout_.states, table.states_.spare.back().id(),
           table.reserved_tokens_ / node_tokens(), table.owner_);
  }
}

bool KvCache::make_room_beside(PageTable& table, PageId state) {
  const PageTable::States& states = table.states_;
  const bool is_written_over =
      !states.ends.empty() && states.ends.back().page.id() == state && is_own(states.ends.back().page);
  if (!is_written_over || !states.spare.empty()) return true;
  if (!make_free(*layout_.states, 1)) return false;
  take_states(table, 1);
  return true;
}

void KvCache::begin_with(PageTable& table, uint32_t tokens, PageId page) {
  table.states_.ends.clear();
  table.states_.ends.push_back({tokens, share(*layout_.states, page, table, tokens / node_tokens())});
}

std::optional<PageRef> KvCache::room_to_keep(const PageTable& table, uint32_t tokens) {
  PagePool& pool = *pools_[*layout_.states];
  // One that is only kept in case costs nobody else's.
  const bool is_wanted = std::ranges::binary_search(table.states_.wanted, tokens);
  if (pool.free_pages() == 0 && (!is_wanted || !make_free(*layout_.states, 1))) return std::nullopt;
  return pool.take();
}

void KvCache::begin_run(PageTable& table, uint32_t row, uint32_t count, uint32_t guesses) {
  if (!layout_.has_states()) return;
  PageTable::States& states = table.states_;
  states.pages.clear();
  states.rows.clear();
  const auto leave = [&](uint32_t at, const PageRef& page) {
    states.pages.push_back(page.id().value);
    states.rows.push_back(at);
  };
  const uint32_t sure = row + count, end = sure + guesses;
  CHECK(row == 0 ? states.ends.empty() : states.ends.size() == 1 && states.ends.back().at == row);
  if (row == 0) {
    states.pages.push_back(kNoPage);
    states.rows.push_back(0);
  } else {
    leave(row, states.ends.back().page);
  }
  for (uint32_t at = (row / node_tokens() + 1) * node_tokens(); at <= sure && at < end; at += node_tokens()) {
    if (!wants_state(table, at)) continue;
    if (std::optional<PageRef> page = room_to_keep(table, at)) {
      record(KvEventKind::reserved, *layout_.states, page->id(), at / node_tokens(), table.owner_);
      leave(at, *page);
      states.kept.push_back({at, *std::move(page)});
    }
  }
  const bool in_place = row > 0 && !options_.way_back && guesses == 0 && is_own(states.ends.back().page);
  if (in_place) {
    states.ends.back().at = end;
  } else {
    CHECK(!states.spare.empty());
    states.ends.push_back({end, std::move(states.spare.back())});
    states.spare.pop_back();
  }
  leave(end, states.ends.back().page);
}

void KvCache::end_run(PageTable& table, uint32_t computed, uint32_t ahead) {
  if (!layout_.has_states()) return;
  PageTable::States& states = table.states_;
  std::vector<PageTable::State> ends = std::exchange(states.ends, {});
  for (PageTable::State& state : ends) {
    if (state.at < computed || state.at > computed + ahead) {
      give_up(table, std::move(state));
    } else {
      states.ends.push_back(std::move(state));
    }
  }
  std::erase_if(states.kept, [&](const PageTable::State& state) { return state.at > computed + ahead; });
  const size_t most = options_.way_back ? 2 : 1;  // more are of no use to it
  while (states.spare.size() > most) states.spare.pop_back();
}

// ---- what is found later -----------------------------------------------------------------------------------------

void KvCache::publish_state(PrefixNodeId id, const PageTable& table, const PageTable::State& state) {
  for (uint32_t n = 0; n < node_pages(); ++n) {
    if (layout_.node_pages[n].group != layout_.states || index_.node(id).pages[n]) continue;
    if (pools_[*layout_.states]->is_published(state.page.id()))
      continue;  // as another node of the same tokens
    publish_as(id, n, state.page.id(), use_);
    record(KvEventKind::published, *layout_.states, state.page.id(),
           layout_.page_index(n, index_.node(id).depth), table.owner_);
  }
}

void KvCache::publish_states(PageTable& table, uint32_t computed) {
  if (!layout_.has_states()) return;
  PageTable::States& states = table.states_;
  const auto publish = [&](const PageTable::State& state) {
    const uint32_t nodes = state.at / node_tokens();
    if (nodes > 0 && nodes <= table.published_) publish_state(node_at(table, nodes), table, state);
  };
  for (const PageTable::State& state : states.kept) {
    if (state.at <= computed) publish(state);
  }
  std::erase_if(states.kept, [&](const PageTable::State& state) { return state.at <= computed; });
  for (const PageTable::State& state : states.ends) {
    if (state.at == computed && wants_state(table, computed)) publish(state);
  }
  std::erase_if(states.wanted, [&](uint32_t at) { return at <= computed; });
}

}  // namespace quire
