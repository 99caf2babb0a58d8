#include <algorithm>
#include <utility>

#include "base/check.h"
#include "kv/kv_cache.h"

// How sequences take, publish and give up pages that they have in common.

namespace quire {

PageRef KvCache::share(uint32_t group, PageId page, PageTable& table, uint32_t index) {
  record(KvEventKind::shared, group, page, index, table.owner_);
  return pools_[group]->share(page);
}

void KvCache::hold_node(PageTable& table, PrefixNodeId node) {
  index_.hold(node);
  const PrefixNodeId before = std::exchange(table.node_, node);
  if (before != PrefixIndex::kRoot) index_.drop(before);
}

void KvCache::touch_chain(PrefixNodeId last) {
  ++use_;
  for (PrefixNodeId id = last; id != PrefixIndex::kRoot; id = index_.node(id).parent) {
    const PrefixIndex::Node& node = index_.node(id);
    for (uint32_t n = 0; n < node.pages.size(); ++n) {
      // A state is used where a sequence begins with it; those before it are not.
      const bool is_used = id == last || layout_.node_pages[n].group != layout_.states;
      if (node.pages[n] && is_used)
        pools_[layout_.node_pages[n].group]->touch(*node.pages[n], use_, layout_.page_index(n, node.depth));
    }
  }
}

bool KvCache::copy_part(PageTable& table, std::span<const std::optional<PageId>> from, uint32_t depth) {
  std::vector<std::optional<PageRef>> sources(from.size());  // held, or making room could evict them
  std::vector<uint32_t> wanted(pools_.size());
  for (uint32_t n = 0; n < from.size(); ++n) {
    const uint32_t g = layout_.node_pages[n].group;
    if (!from[n]) continue;
    sources[n] = pools_[g]->share(*from[n]);
    ++wanted[g];
  }
  for (uint32_t g = 0; g < pools_.size(); ++g) {
    if (pools_[g]->free_pages() + pools_[g]->cached_pages() < wanted[g]) return false;
  }
  for (uint32_t n = 0; n < from.size(); ++n) {
    if (!sources[n]) continue;
    const uint32_t g = layout_.node_pages[n].group, index = layout_.page_index(n, depth);
    CHECK(make_free(g, 1));
    PageRef page = *pools_[g]->take();
    moves_.list.push_back(
        {.group = g, .bytes = page_bytes(g), .from = place_of(g, *from[n]), .to = place_of(g, page.id())});
    record(KvEventKind::copied, g, page.id(), index, table.owner_);
    table.groups_[g].pages.resize(index + 1);
    table.groups_[g].pages.back() = std::move(page);
  }
  return true;
}

void KvCache::end_at(PageTable& table, uint32_t tokens) const {
  for (size_t g = 0; g < pools_.size(); ++g) {
    PageTable::Group& group = table.groups_[g];
    if (layout_.groups[g].is_state) continue;
    group.pages.resize(layout_.groups[g].pages_covering(tokens));
    group.first_page = std::min(group.first_page, uint32_t(group.pages.size()));
  }
  table.reserved_tokens_ = tokens;
}

PrefixMatch KvCache::attach(PageTable& table, std::span<const TokenId> tokens) {
  CHECK(table.reserved_tokens_ == 0 && table.published_ == 0);
  Path path = find({tokens, table.salt_});
  shorten_to_usable(path);
  shorten_to_room(path);
  if (path.known > path.tokens) keep_state_at(table, path.known);
  if (path.tokens == 0) return {0, path.miss};
  const PrefixNodeId last = path.part.tokens > 0 ? path.part.node : path.nodes.back();
  touch_chain(last);
  const uint32_t whole = uint32_t(path.nodes.size());
  for (uint32_t g = 0; g < pools_.size(); ++g) {
    if (g != layout_.states) table.groups_[g].first_page = layout_.groups[g].first_page_seen(path.tokens);
  }
  for (uint32_t n = 0; n < node_pages(); ++n) {
    const uint32_t g = layout_.node_pages[n].group;
    if (g == layout_.states) {
      begin_with(table, path.tokens, *index_.node(last).pages[n]);
      continue;
    }
    PageTable::Group& group = table.groups_[g];
    group.pages.resize(whole * (node_tokens() / layout_.groups[g].page_tokens));
    for (uint32_t i = 0; i < whole; ++i) {
      const uint32_t index = layout_.page_index(n, i);
      if (index >= group.first_page)
        group.pages[index] = share(g, *index_.node(path.nodes[i]).pages[n], table, index);
    }
  }
  table.published_ = whole;
  if (whole > 0) hold_node(table, path.nodes.back());
  if (path.part.tokens > 0)
    CHECK(copy_part(table, seen_of_part(index_.node(path.part.node).pages, whole, path.part.tokens), whole));
  end_at(table, path.tokens);
  return {path.tokens, path.miss};
}

void KvCache::publish_as(PrefixNodeId id, uint32_t node_page, PageId page, uint64_t use) {
  const uint32_t group = layout_.node_pages[node_page].group;
  index_.node(id).pages[node_page] = page;
  published_as_[group][page.value] = {id, node_page};
  pools_[group]->publish(page);
  pools_[group]->touch(page, use, layout_.page_index(node_page, index_.node(id).depth));
  news_.came(index_, id, node_page);
  if (remote_ != nullptr && index_.node(id).tokens.size() == node_tokens() &&
      index_.node(id).salt.pruned == 0)
    send(node_page, page, id, {tokens_up_to(id), index_.node(id).salt});
}

void KvCache::publish_node(PageTable& table, uint32_t depth, PrefixNodeId id) {
  for (uint32_t n = 0; n < node_pages(); ++n) {
    if (!layout_.reaches(n, index_.node(id).tokens.size())) continue;
    const uint32_t g = layout_.node_pages[n].group, index = layout_.page_index(n, depth);
    if (g == layout_.states) continue;  // see publish_state
    std::optional<PageRef>& own = table.groups_[g].pages[index];
    if (!own) continue;
    const std::optional<PageId> published = index_.node(id).pages[n];
    if (published == own->id()) continue;
    if (published) {
      // Another sequence has computed the same: bit for bit, so one copy is enough.
      PageRef theirs = share(g, *published, table, index);
      give_up(table, g, index, KvEventKind::released);
      own = std::move(theirs);
      continue;
    }
    publish_as(id, n, own->id(), use_);
    record(KvEventKind::published, g, own->id(), index, table.owner_);
  }
}

std::optional<PrefixNodeId> KvCache::node_before_next(const PageTable& table) const {
  return table.published_ > 0 ? table.node_ : index_.root(table.salt_);
}

void KvCache::publish(PageTable& table, std::span<const TokenId> tokens, uint32_t computed) {
  if (!options_.sharing || table.pruned_) return;
  while ((table.published_ + 1) * node_tokens() <= computed) {
    const uint32_t depth = table.published_;
    const auto of_node = tokens.subspan(size_t(depth) * node_tokens(), node_tokens());
    const PrefixNodeId before = table.published_ > 0 ? table.node_ : index_.root_or_add(table.salt_);
    const auto known = index_.child(before, of_node);
    const PrefixNodeId node = known ? *known : index_.add(before, of_node);
    hold_node(table, node);
    publish_node(table, depth, node);
    ++table.published_;
  }
  publish_states(table, computed);
}

void KvCache::publish_tail(PageTable& table, std::span<const TokenId> tail) {
  const std::optional<PrefixNodeId> before = node_before_next(table);
  const PrefixIndex::Longest longest =
      before ? index_.longest_child(*before, tail, parts()) : PrefixIndex::Longest{};
  const uint32_t end = table.published_ * node_tokens() + uint32_t(tail.size());
  if (longest.tokens == tail.size()) {  // all of it can be found already, but for pages that are gone
    if (const PageRef* state = state_at(table, end)) {
      publish_node(table, table.published_, longest.node);
      publish_state(longest.node, table, {end, *state});
    }
    return;
  }
  PrefixNodeId shorter = PrefixIndex::kRoot;
  if (longest.tokens > 0 && index_.node(longest.node).tokens.size() == longest.tokens &&
      !layout_.has_states())
    shorter = longest.node;
  const PrefixNodeId node = index_.add(before ? *before : index_.root_or_add(table.salt_), tail);
  publish_node(table, table.published_, node);
  if (const PageRef* state = state_at(table, end)) publish_state(node, table, {end, *state});
  table.published_ += 1;
  hold_node(table, node);
  if (shorter == PrefixIndex::kRoot) return;
  // The beginning of this node was published before: it says nothing more than this one.
  for (uint32_t n = 0; n < node_pages(); ++n) {
    const uint32_t g = layout_.node_pages[n].group;
    std::optional<PageId>& page = index_.node(shorter).pages[n];
    if (!page || pools_[g]->shares(*page) > 0) continue;
    pools_[g]->unpublish(*page);
    record(KvEventKind::evicted, g, *page, layout_.page_index(n, index_.node(shorter).depth), {});
    page.reset();
  }
  index_.prune(shorter);
}

void KvCache::release(PageTable& table, std::span<const TokenId> tokens, uint32_t computed, Reason reason) {
  if (options_.sharing && reason != Reason::forgotten && !table.pruned_) {
    publish(table, tokens, computed);
    const uint32_t done = table.published_ * node_tokens();
    const PageRef* state = state_at(table, computed);
    // Without a state nobody could go on there.
    if (computed > done && (!layout_.has_states() || state != nullptr)) {
      publish_tail(table, tokens.subspan(done, computed - done));
    } else if (computed > 0 && computed == done && state != nullptr) {
      publish_state(table.node_, table, {computed, *state});
    }
  }
  touch_chain(table.node_);
  for (uint32_t g = 0; g < pools_.size(); ++g) {
    for (uint32_t i = 0; i < table.groups_[g].pages.size(); ++i)
      give_up(table, g, i, reason == Reason::preempted ? KvEventKind::preempted : KvEventKind::released);
  }
  for (const PageTable::State& state : table.states_.ends)
    record(reason == Reason::preempted ? KvEventKind::preempted : KvEventKind::released, *layout_.states,
           state.page.id(), state.at / node_tokens(), table.owner_);
  if (table.node_ != PrefixIndex::kRoot) index_.drop(table.node_);
  table = make_table(table.owner_, table.salt_);
}

std::optional<PageTable> KvCache::fork(PageTable& table, uint32_t at, SequenceId owner) {
  CHECK(at <= table.reserved_tokens_);
  if (table.pruned_) return std::nullopt;
  PageTable other = make_table(owner, table.salt_);
  const uint32_t whole = at / node_tokens(), rest = at % node_tokens();
  const std::optional<PageId> state = published_state(table, at);
  if (layout_.has_states() && at > 0 && !state) return std::nullopt;
  for (uint32_t g = 0; g < pools_.size(); ++g) {
    if (table.groups_[g].first_page > layout_.groups[g].first_page_seen(at)) return std::nullopt;
  }
  if (state && !make_room_beside(table, *state)) return std::nullopt;
  std::vector<std::optional<PageId>> part(node_pages());
  for (uint32_t n = 0; n < node_pages(); ++n) {
    const uint32_t g = layout_.node_pages[n].group;
    if (g == layout_.states) {
      if (state) begin_with(other, at, *state);
      continue;
    }
    const PageTable::Group& from = table.groups_[g];
    PageTable::Group& to = other.groups_[g];
    to.pages.resize(whole * (node_tokens() / layout_.groups[g].page_tokens));
    to.first_page = from.first_page;
    for (uint32_t i = 0; i < whole; ++i) {
      const uint32_t index = layout_.page_index(n, i);
      if (from.pages[index]) to.pages[index] = share(g, from.pages[index]->id(), other, index);
    }
    const uint32_t index = layout_.page_index(n, whole);
    if (layout_.reaches(n, rest) && from.pages[index]) part[n] = from.pages[index]->id();
  }
  PrefixNodeId node = table.node_;
  other.published_ = std::min(whole, table.published_);
  for (uint32_t i = table.published_; i > other.published_; --i) node = index_.node(node).parent;
  if (other.published_ > 0) hold_node(other, node);
  if (!copy_part(other, seen_of_part(part, whole, rest), whole)) {
    release(other, {}, 0, Reason::forgotten);
    return std::nullopt;
  }
  end_at(other, at);
  return other;
}

PageTable KvCache::pin(const SaltedTokens& salted, SequenceId owner) {
  PageTable table = make_table(owner, salted.salt);
  const std::span<const TokenId> tokens = salted.tokens;
  const std::optional<PrefixNodeId> root = index_.root(salted.salt);
  PrefixNodeId at = root.value_or(PrefixIndex::kRoot);
  for (size_t begin = 0; root && begin + node_tokens() <= tokens.size(); begin += node_tokens()) {
    const auto next = index_.child(at, tokens.subspan(begin, node_tokens()));
    if (!next) break;
    at = *next;
    for (uint32_t n = 0; n < node_pages(); ++n) {
      const uint32_t g = layout_.node_pages[n].group;
      if (g == layout_.states) {
        // The last there is: those before it are of use to nobody who goes on from there.
        if (const auto page = index_.node(at).pages[n])
          begin_with(table, uint32_t(begin) + node_tokens(), *page);
        continue;
      }
      auto& pages = table.groups_[g].pages;
      pages.emplace_back();
      if (const auto page = index_.node(at).pages[n])
        pages.back() = share(g, *page, table, uint32_t(pages.size() - 1));
    }
    ++table.published_;
  }
  if (table.published_ > 0) hold_node(table, at);
  table.reserved_tokens_ = table.published_ * node_tokens();
  return table;
}

}  // namespace quire
