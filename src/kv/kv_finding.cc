#include <algorithm>

#include "base/check.h"
#include "kv/kv_cache.h"

// What there is of tokens: pages that could be shared, as far as all groups have them. Nothing here changes the cache.

namespace quire {

KvCache::Path KvCache::find(const SaltedTokens& salted) const {
  Path path;
  const std::span<const TokenId> tokens = salted.tokens;
  if (!options_.sharing || tokens.empty()) return path;
  const std::span<const TokenId> wanted = tokens.first(tokens.size() - 1);
  const std::optional<PrefixNodeId> root = index_.root(salted.salt);
  PrefixNodeId at = root.value_or(PrefixIndex::kRoot);
  while (root && path.tokens + node_tokens() <= wanted.size()) {
    const auto next = index_.child(at, wanted.subspan(path.tokens, node_tokens()));
    if (!next) break;
    at = *next;
    path.nodes.push_back(at);
    path.tokens += node_tokens();
  }
  const std::span<const TokenId> rest = wanted.subspan(path.tokens);
  if (root)
    path.part = index_.longest_child(at, rest.first(std::min<size_t>(rest.size(), node_tokens())), parts());
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
  enum class Of : uint8_t { all, rows };
  const auto usable_with = [&](uint32_t tokens, Of which = Of::all) {
    for (size_t g = 0; g < pools_.size(); ++g) {
      const KvPolicy& group = layout_.groups[g];
      if (group.is_state && which == Of::rows) continue;
      if (there[g] < group.pages_covering(tokens) - group.first_page_seen(tokens)) return false;
    }
    return true;
  };
  const auto step_over = [&](const PrefixIndex::Node& node, uint32_t tokens) {
    for (uint32_t n = 0; n < node_pages(); ++n) {
      uint32_t& count = there[layout_.node_pages[n].group];
      if (layout_.reaches(n, tokens)) count = node.pages[n] ? count + 1 : 0;
    }
  };
  size_t best_nodes = 0;
  for (size_t i = 0; i < path.nodes.size(); ++i) {
    step_over(index_.node(path.nodes[i]), node_tokens());
    if (usable_with(uint32_t(i + 1) * node_tokens())) best_nodes = i + 1;
    if (usable_with(uint32_t(i + 1) * node_tokens(), Of::rows)) path.known = uint32_t(i + 1) * node_tokens();
  }
  uint32_t best_tokens = uint32_t(best_nodes) * node_tokens();
  if (path.part.tokens > 0) {
    step_over(index_.node(path.part.node), path.part.tokens);
    if (usable_with(path.tokens)) return;
  }
  if (best_tokens == path.tokens) return;
  path.nodes.resize(best_nodes);
  path.part = {};
  path.tokens = best_tokens;
  path.miss = {.why = PrefixMiss::Why::window, .position = best_tokens};
  if (path.known > best_tokens)
    path.miss = {.why = PrefixMiss::Why::state, .position = best_tokens, .known = path.known};
}

PrefixMatch KvCache::lookup(const SaltedTokens& tokens) const {
  Path path = find(tokens);
  shorten_to_usable(path);
  return {path.tokens, path.miss};
}

bool KvCache::fits(SequenceSize size, const SaltedTokens& findable, uint32_t chunk, uint32_t headroom) const {
  Path path = find(findable);
  shorten_to_usable(path);
  const std::vector<uint32_t> all = pages_for(layout_, {size.tokens + 1, size.bound}, chunk, 1);
  std::vector<uint32_t> found(pools_.size()), found_cached(pools_.size());
  for (uint32_t i = 0; i < path.nodes.size(); ++i) {
    for (uint32_t n = 0; n < node_pages(); ++n) {
      const uint32_t g = layout_.node_pages[n].group;
      if (layout_.page_index(n, i) < layout_.groups[g].first_page_seen(path.tokens)) continue;
      ++found[g];
      if (pools_[g]->shares(*index_.node(path.nodes[i]).pages[n]) == 0) ++found_cached[g];
    }
  }
  for (uint32_t g = 0; g < pools_.size(); ++g) {
    const uint32_t missing = all[g] > found[g] ? all[g] - found[g] : 0;
    const uint32_t spared = g == layout_.states ? 0 : headroom;  // who runs has the states that it needs
    if (missing + spared > pools_[g]->free_pages() + pools_[g]->cached_pages() - found_cached[g])
      return false;
  }
  return true;
}

std::vector<std::optional<PageId>> KvCache::seen_of_part(std::span<const std::optional<PageId>> pages,
                                                         uint32_t depth, uint32_t tokens) const {
  std::vector<std::optional<PageId>> seen(node_pages());
  for (uint32_t n = 0; n < node_pages(); ++n) {
    const KvPolicy& group = layout_.groups[layout_.node_pages[n].group];
    if (group.is_state) continue;  // is shared, and never written to
    const uint32_t first = group.first_page_seen(depth * node_tokens() + tokens);
    if (layout_.reaches(n, tokens) && layout_.page_index(n, depth) >= first) seen[n] = pages[n];
  }
  return seen;
}

void KvCache::shorten_to_room(Path& path) const {
  if (path.part.tokens == 0) return;
  std::vector<uint32_t> copies(pools_.size()), held(pools_.size());  // held: that are cached now
  const auto count = [&](uint32_t n, PageId page) {
    const uint32_t g = layout_.node_pages[n].group;
    if (pools_[g]->shares(page) == 0) ++held[g];
    return g;
  };
  const uint32_t whole = uint32_t(path.nodes.size());
  const auto part = seen_of_part(index_.node(path.part.node).pages, whole, path.part.tokens);
  for (uint32_t n = 0; n < node_pages(); ++n) {
    if (part[n]) ++copies[count(n, *part[n])];
    for (uint32_t i = 0; i < whole; ++i) {
      const KvPolicy& group = layout_.groups[layout_.node_pages[n].group];
      if (layout_.page_index(n, i) >= group.first_page_seen(path.tokens))
        count(n, *index_.node(path.nodes[i]).pages[n]);
    }
  }
  for (size_t g = 0; g < pools_.size(); ++g) {
    if (copies[g] + held[g] <= pools_[g]->free_pages() + pools_[g]->cached_pages()) continue;
    path.tokens -= path.part.tokens;
    path.part = {};
    path.miss = {.why = PrefixMiss::Why::no_room, .position = path.tokens};
    return shorten_to_usable(path);
  }
}

}  // namespace quire
