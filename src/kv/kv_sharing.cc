#include <algorithm>
#include <utility>

#include "base/check.h"
#include "kv/kv_cache.h"

// How sequences find, take, publish and give up pages that they have in common.

namespace quire {

KvCache::Path KvCache::find(const SaltedTokens& salted) const {
  Path path;
  const std::span<const TokenId> tokens = salted.tokens;
  if (!options_.sharing || tokens.empty()) return path;
  const std::span<const TokenId> wanted = tokens.first(tokens.size() - 1);
  const std::optional<PrefixNodeId> root = index_.root(salted.salt);
  PrefixNodeId at = root.value_or(PrefixIndex::kRoot);
  while (root && path.tokens + page_tokens() <= wanted.size()) {
    const auto next = index_.child(at, wanted.subspan(path.tokens, page_tokens()));
    if (!next) break;
    at = *next;
    path.nodes.push_back(at);
    path.tokens += page_tokens();
  }
  const std::span<const TokenId> rest = wanted.subspan(path.tokens);
  if (root) path.part = index_.longest_child(at, rest.first(std::min<size_t>(rest.size(), page_tokens())));
  path.tokens += path.part.tokens;

  path.miss.position = path.tokens;
  const uint64_t hash_before = root ? index_.node(at).hash : index_.root_hash(salted.salt);
  const auto evicted = index_.evicted_at(hash_before, tokens.subspan(path.tokens - path.part.tokens));
  if (path.tokens == wanted.size()) {
    path.miss.why = PrefixMiss::Why::nothing;
  } else if (evicted) {
    path.miss.why = PrefixMiss::Why::evicted;
    path.miss.evicted_seconds_ago = milliseconds_between(*evicted, Clock::now()) / 1000;
  } else if (path.part.tokens > 0) {
    const bool ends = index_.node(path.part.node).tokens.size() == path.part.tokens;
    path.miss.why = ends ? PrefixMiss::Why::ended : PrefixMiss::Why::differs;
  } else if (path.tokens == 0) {
    path.miss.why = PrefixMiss::Why::never_seen;
  } else {
    path.miss.why = index_.node(at).children.empty() ? PrefixMiss::Why::ended : PrefixMiss::Why::differs;
  }
  return path;
}

void KvCache::shorten_to_usable(Path& path) const {
  // By group: how many pages from here back are all there.
  std::vector<uint32_t> there(pools_.size(), 0);
  const auto usable_with = [&](uint32_t tokens) {
    for (size_t g = 0; g < pools_.size(); ++g) {
      const uint32_t window = layout_.groups[g].window;
      const uint32_t first_seen = window == 0 || tokens + 1 <= window ? 0 : tokens + 1 - window;
      const uint32_t needed = (tokens + page_tokens() - 1) / page_tokens() - first_seen / page_tokens();
      if (there[g] < needed) return false;
    }
    return true;
  };
  const auto step_over = [&](const PrefixIndex::Node& node) {
    for (size_t g = 0; g < pools_.size(); ++g) there[g] = node.pages[g] ? there[g] + 1 : 0;
  };
  size_t best_nodes = 0;
  for (size_t i = 0; i < path.nodes.size(); ++i) {
    step_over(index_.node(path.nodes[i]));
    if (usable_with(uint32_t(i + 1) * page_tokens())) best_nodes = i + 1;
  }
  uint32_t best_tokens = uint32_t(best_nodes) * page_tokens();
  bool with_part = false;
  if (path.part.tokens > 0) {
    step_over(index_.node(path.part.node));
    with_part = usable_with(path.tokens);
    if (with_part) {
      best_nodes = path.nodes.size();
      best_tokens = path.tokens;
    }
  }
  if (best_tokens == path.tokens) return;
  path.nodes.resize(best_nodes);
  path.part = {};
  path.tokens = best_tokens;
  path.miss = {.why = PrefixMiss::Why::window, .position = best_tokens};
}

PrefixMatch KvCache::lookup(const SaltedTokens& tokens) const {
  Path path = find(tokens);
  shorten_to_usable(path);
  return {path.tokens, path.miss};
}

bool KvCache::fits(uint32_t tokens, const SaltedTokens& findable, uint32_t chunk, uint32_t headroom) const {
  Path path = find(findable);
  shorten_to_usable(path);
  const std::vector<uint32_t> all = pages_for(layout_, tokens + 1, chunk, 1);
  for (uint32_t g = 0; g < pools_.size(); ++g) {
    const uint32_t window = layout_.groups[g].window;
    const uint32_t first_seen = window == 0 || path.tokens + 1 <= window ? 0 : path.tokens + 1 - window;
    uint32_t found = 0, found_cached = 0;
    for (size_t i = first_seen / page_tokens(); i < path.nodes.size(); ++i) {
      ++found;
      if (pools_[g]->shares(*index_.node(path.nodes[i]).pages[g]) == 0) ++found_cached;
    }
    const uint32_t missing = all[g] > found ? all[g] - found : 0;
    if (missing + headroom > pools_[g]->free_pages() + pools_[g]->cached_pages() - found_cached) return false;
  }
  return true;
}

PageRef KvCache::share(uint32_t group, PageId page, PageTable& table, uint32_t index) {
  record(KvEventKind::shared, group, page, index, table.owner_);
  return pools_[group]->share(page);
}

void KvCache::hold_node(PageTable& table, PrefixNodeId node) {
  index_.hold(node);
  const PrefixNodeId before = std::exchange(table.node_, node);
  if (before != PrefixIndex::kRoot) index_.drop(before);
}

void KvCache::touch_chain(PrefixNodeId id) {
  ++use_;
  for (; id != PrefixIndex::kRoot; id = index_.node(id).parent) {
    const PrefixIndex::Node& node = index_.node(id);
    for (size_t g = 0; g < pools_.size(); ++g) {
      if (node.pages[g]) pools_[g]->touch(*node.pages[g], use_, node.depth);
    }
  }
}

// A page of its own with the rows of another, in every group that has it.
bool KvCache::copy_part(PageTable& table, std::span<const std::optional<PageId>> from, uint32_t index) {
  std::vector<std::optional<PageRef>> sources;  // held, or making room could evict them
  for (uint32_t g = 0; g < pools_.size(); ++g) {
    sources.emplace_back();
    if (from[g]) sources.back() = pools_[g]->share(*from[g]);
  }
  for (uint32_t g = 0; g < pools_.size(); ++g) {
    if (sources[g] && pools_[g]->free_pages() + pools_[g]->cached_pages() == 0) return false;
  }
  for (uint32_t g = 0; g < pools_.size(); ++g) {
    table.groups_[g].pages.emplace_back();
    if (!sources[g]) continue;
    CHECK(make_free(g, 1));
    PageRef page = *pools_[g]->take();
    moves_.list.push_back(
        {.group = g, .bytes = page_bytes(g), .from = place_of(g, *from[g]), .to = place_of(g, page.id())});
    record(KvEventKind::copied, g, page.id(), index, table.owner_);
    table.groups_[g].pages.back() = std::move(page);
  }
  return true;
}

PrefixMatch KvCache::attach(PageTable& table, std::span<const TokenId> tokens) {
  CHECK(table.reserved_tokens_ == 0 && table.published_ == 0);
  Path path = find({tokens, table.salt_});
  shorten_to_usable(path);
  if (path.tokens == 0) return {0, path.miss};
  touch_chain(path.part.tokens > 0 ? path.part.node : path.nodes.back());
  for (uint32_t g = 0; g < pools_.size(); ++g) {
    const uint32_t window = layout_.groups[g].window;
    const uint32_t first_seen = window == 0 || path.tokens + 1 <= window ? 0 : path.tokens + 1 - window;
    PageTable::Group& group = table.groups_[g];
    group.first_page = std::min(first_seen / page_tokens(), uint32_t(path.nodes.size()));
    for (uint32_t i = 0; i < path.nodes.size(); ++i) {
      group.pages.emplace_back();
      if (i >= group.first_page)
        group.pages.back() = share(g, *index_.node(path.nodes[i]).pages[g], table, i);
    }
  }
  table.published_ = uint32_t(path.nodes.size());
  if (!path.nodes.empty()) hold_node(table, path.nodes.back());
  if (path.part.tokens > 0 && !copy_part(table, index_.node(path.part.node).pages, table.published_)) {
    path.tokens -= path.part.tokens;
    path.miss = {.why = PrefixMiss::Why::no_room, .position = path.tokens};
  }
  table.reserved_tokens_ = path.tokens;
  return {path.tokens, path.miss};
}

void KvCache::publish_page(PageTable& table, uint32_t index, PrefixNodeId id) {
  for (uint32_t g = 0; g < pools_.size(); ++g) {
    std::optional<PageRef>& own = table.groups_[g].pages[index];
    if (!own) continue;
    std::optional<PageId>& published = index_.node(id).pages[g];
    if (published == own->id()) continue;
    if (published) {
      // Another sequence has computed the same: bit for bit, so one copy is enough.
      PageRef theirs = share(g, *published, table, index);
      give_up(table, g, index, KvEventKind::released);
      own = std::move(theirs);
      continue;
    }
    published = own->id();
    node_of_page_[g][own->id().value] = id;
    pools_[g]->publish(own->id());
    pools_[g]->touch(own->id(), use_, index_.node(id).depth);
    record(KvEventKind::published, g, own->id(), index, table.owner_);
  }
}

std::optional<PrefixNodeId> KvCache::node_before_next(const PageTable& table) const {
  return table.published_ > 0 ? table.node_ : index_.root(table.salt_);
}

void KvCache::publish(PageTable& table, std::span<const TokenId> tokens, uint32_t computed) {
  if (!options_.sharing || table.pruned_) return;
  while ((table.published_ + 1) * page_tokens() <= computed) {
    const uint32_t index = table.published_;
    const auto page_of_tokens = tokens.subspan(size_t(index) * page_tokens(), page_tokens());
    const PrefixNodeId before = table.published_ > 0 ? table.node_ : index_.root_or_add(table.salt_);
    const auto known = index_.child(before, page_of_tokens);
    const PrefixNodeId node = known ? *known : index_.add(before, page_of_tokens);
    hold_node(table, node);
    publish_page(table, index, node);
    ++table.published_;
  }
}

void KvCache::publish_tail(PageTable& table, std::span<const TokenId> tail) {
  const std::optional<PrefixNodeId> before = node_before_next(table);
  const PrefixIndex::Longest longest = before ? index_.longest_child(*before, tail) : PrefixIndex::Longest{};
  if (longest.tokens == tail.size()) return;  // all of it can be found already
  PrefixNodeId shorter = PrefixIndex::kRoot;
  if (longest.tokens > 0 && index_.node(longest.node).tokens.size() == longest.tokens) shorter = longest.node;
  const PrefixNodeId node = index_.add(before ? *before : index_.root_or_add(table.salt_), tail);
  publish_page(table, table.published_, node);
  table.published_ += 1;
  hold_node(table, node);
  if (shorter == PrefixIndex::kRoot) return;
  // The beginning of this page was published before: it says nothing more than this one.
  for (uint32_t g = 0; g < pools_.size(); ++g) {
    std::optional<PageId>& page = index_.node(shorter).pages[g];
    if (!page || pools_[g]->shares(*page) > 0) continue;
    pools_[g]->unpublish(*page);
    record(KvEventKind::evicted, g, *page, index_.node(shorter).depth, {});
    page.reset();
  }
  index_.prune(shorter);
}

void KvCache::release(PageTable& table, std::span<const TokenId> tokens, uint32_t computed, Reason reason) {
  if (options_.sharing && reason != Reason::forgotten && !table.pruned_) {
    publish(table, tokens, computed);
    const uint32_t done = table.published_ * page_tokens();
    if (computed > done) publish_tail(table, tokens.subspan(done, computed - done));
  }
  touch_chain(table.node_);
  for (uint32_t g = 0; g < pools_.size(); ++g) {
    for (uint32_t i = 0; i < table.groups_[g].pages.size(); ++i)
      give_up(table, g, i, reason == Reason::preempted ? KvEventKind::preempted : KvEventKind::released);
  }
  if (table.node_ != PrefixIndex::kRoot) index_.drop(table.node_);
  table = make_table(table.owner_, table.salt_);
}

std::optional<PageTable> KvCache::fork(const PageTable& table, uint32_t at, SequenceId owner) {
  CHECK(at <= table.reserved_tokens_);
  if (table.pruned_) return std::nullopt;
  PageTable other = make_table(owner, table.salt_);
  const uint32_t whole = at / page_tokens();
  for (uint32_t g = 0; g < pools_.size(); ++g) {
    const uint32_t window = layout_.groups[g].window;
    const uint32_t first_seen = window == 0 || at + 1 <= window ? 0 : at + 1 - window;
    if (table.groups_[g].first_page > first_seen / page_tokens()) return std::nullopt;
  }
  std::vector<std::optional<PageId>> part(pools_.size());
  for (uint32_t g = 0; g < pools_.size(); ++g) {
    const PageTable::Group& from = table.groups_[g];
    PageTable::Group& to = other.groups_[g];
    to.first_page = std::min(from.first_page, whole);
    for (uint32_t i = 0; i < whole; ++i) {
      to.pages.emplace_back();
      if (from.pages[i]) to.pages.back() = share(g, from.pages[i]->id(), other, i);
    }
    if (at % page_tokens() != 0 && from.pages[whole]) part[g] = from.pages[whole]->id();
  }
  PrefixNodeId node = table.node_;
  other.published_ = std::min(whole, table.published_);
  for (uint32_t i = table.published_; i > other.published_; --i) node = index_.node(node).parent;
  if (other.published_ > 0) hold_node(other, node);
  other.reserved_tokens_ = at;
  if (at % page_tokens() != 0 && !copy_part(other, part, whole)) {
    release(other, {}, 0, Reason::forgotten);
    return std::nullopt;
  }
  return other;
}

PageTable KvCache::pin(const SaltedTokens& salted, SequenceId owner) {
  PageTable table = make_table(owner, salted.salt);
  const std::span<const TokenId> tokens = salted.tokens;
  const std::optional<PrefixNodeId> root = index_.root(salted.salt);
  PrefixNodeId at = root.value_or(PrefixIndex::kRoot);
  for (size_t begin = 0; root && begin + page_tokens() <= tokens.size(); begin += page_tokens()) {
    const auto next = index_.child(at, tokens.subspan(begin, page_tokens()));
    if (!next) break;
    at = *next;
    for (uint32_t g = 0; g < pools_.size(); ++g) {
      table.groups_[g].pages.emplace_back();
      if (const auto page = index_.node(at).pages[g])
        table.groups_[g].pages.back() = share(g, *page, table, table.published_);
    }
    ++table.published_;
  }
  if (table.published_ > 0) hold_node(table, at);
  table.reserved_tokens_ = table.published_ * page_tokens();
  return table;
}

}  // namespace quire
