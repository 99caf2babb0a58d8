#include <algorithm>
#include <utility>

#include "base/check.h"
#include "kv/kv_cache.h"
#include "kv/tiers/disk_tier.h"
#include "kv/tiers/host_tier.h"
#include "kv/tiers/remote_tier.h"

// How pages go to the disk when their memory is needed, and come back; and to a store, from which they come to others too.

namespace quire {

std::vector<TokenId> KvCache::tokens_up_to(PrefixNodeId id) const {
  std::vector<TokenId> tokens(size_t(index_.node(id).depth + 1) * node_tokens());
  for (PrefixNodeId at = id; at != PrefixIndex::kRoot; at = index_.node(at).parent) {
    const PrefixIndex::Node& node = index_.node(at);
    std::ranges::copy(node.tokens, tokens.begin() + ptrdiff_t(size_t(node.depth) * node_tokens()));
  }
  return tokens;
}

void KvCache::store_on_disk(uint32_t node_page, PageId page, PrefixNodeId id) {
  const uint32_t group = layout_.node_pages[node_page].group;
  const std::vector<TokenId> prefix = tokens_up_to(id);
  const DiskTier::Place place = tier_->store(node_page, {prefix, index_.node(id).salt});
  if (place.stored != DiskTier::Stored::queued) return;
  moves_.list.push_back({.group = group,
                         .bytes = page_bytes(group),
                         .from = place_of(group, page),
                         .host_to = place.bytes,
                         .stored_as = place.ticket});
  record(KvEventKind::stored, group, page, layout_.page_index(node_page, index_.node(id).depth), {});
}

void KvCache::send(uint32_t node_page, PageId page, PrefixNodeId id, const SaltedTokens& prefix) {
  const RemoteTier::Place place = remote_->send(node_page, prefix);
  if (place.bytes == nullptr) return;
  const uint32_t group = layout_.node_pages[node_page].group;
  moves_.list.push_back({.group = group,
                         .bytes = page_bytes(group),
                         .from = place_of(group, page),
                         .host_to = place.bytes,
                         .sent_as = place.ticket});
  record(KvEventKind::sent, group, page, layout_.page_index(node_page, index_.node(id).depth), {});
}

void KvCache::send(const SaltedTokens& tokens) {
  if (remote_ == nullptr || !options_.sharing || !remote_->takes(tokens.salt)) return;
  const std::vector<std::vector<bool>> there = remote_->pages_along(tokens);
  std::optional<PrefixNodeId> at = index_.root(tokens.salt);
  for (uint32_t node = 0; at && (node + 1) * node_tokens() <= tokens.size(); ++node) {
    at = index_.child(*at, tokens.tokens.subspan(size_t(node) * node_tokens(), node_tokens()));
    for (uint32_t n = 0; at && n < node_pages(); ++n) {
      const std::optional<PageId> page = index_.node(*at).pages[n];
      if (page && !(node < there.size() && there[node][n]))
        send(n, *page, *at, tokens.first(size_t(node + 1) * node_tokens()));
    }
  }
}

TierMatch KvCache::lookup_in_host(const SaltedTokens& tokens) const {
  return match_in(Where::host, tokens);
}

TierMatch KvCache::lookup_on_disk(const SaltedTokens& tokens) const {
  return match_in(Where::disk, tokens);
}

TierMatch KvCache::lookup_in_store(const SaltedTokens& tokens) const {
  return match_in(Where::remote, tokens);
}

TierMatch KvCache::match_in(Where tier, const SaltedTokens& tokens) const {
  TierMatch match;
  match.memory_tokens = match.tokens = lookup(tokens).tokens;
  const bool is_there = tier == Where::host   ? host_ != nullptr
                        : tier == Where::disk ? tier_ != nullptr
                                              : remote_ != nullptr;
  if (!is_there || !options_.sharing || tokens.size() == 0) return match;
  const SaltedTokens wanted = tokens.first(tokens.size() - 1);  // the last is always computed
  using Pages = std::vector<std::vector<bool>>;
  const bool near = tier != Where::remote;
  const Pages in_host = near && host_ != nullptr ? host_->pages_along(wanted) : Pages();
  const Pages on_disk = tier == Where::disk ? tier_->pages_along(wanted) : Pages();
  const Pages remote = near ? Pages() : remote_->pages_along(wanted);
  const std::vector<PrefixNodeId> in_memory = find(tokens).nodes;
  const auto has = [](const Pages& pages, uint32_t page, uint32_t node) {
    return node < pages.size() && pages[node][page];
  };
  const auto where = [&](uint32_t page, uint32_t node) {
    if (node < in_memory.size() && index_.node(in_memory[node]).pages[page]) return Where::memory;
    if (has(in_host, page, node)) return Where::host;
    if (has(on_disk, page, node)) return Where::disk;
    return has(remote, page, node) ? Where::remote : Where::nowhere;
  };
  const uint32_t most = uint32_t(std::max({in_memory.size(), in_host.size(), on_disk.size(), remote.size()}));
  // Nodes that could be taken up if all that is no further than this were here.
  const auto usable_with = [&](Where furthest) {
    std::vector<uint32_t> there(pools_.size(), 0);  // by group: how many pages from here back
    uint32_t best = 0;
    for (uint32_t i = 0; i < most; ++i) {
      for (uint32_t n = 0; n < node_pages(); ++n) {
        uint32_t& count = there[layout_.node_pages[n].group];
        count = where(n, i) > furthest ? 0 : count + 1;
      }
      const uint32_t end = (i + 1) * node_tokens();
      const auto is_seen = [&](const KvGroupLayout& group) {
        return there[size_t(&group - layout_.groups.data())] >=
               group.pages_covering(end) - group.first_page_seen(end);
      };
      if (std::ranges::all_of(layout_.groups, is_seen)) best = i + 1;
    }
    return best;
  };
  if (tier == Where::disk && host_ != nullptr)
    match.memory_tokens = match.tokens =
        std::max(match.memory_tokens, usable_with(Where::host) * node_tokens());
  const uint32_t best = usable_with(tier);
  if (best * node_tokens() <= match.memory_tokens) return match;
  match.tokens = best * node_tokens();
  for (uint32_t i = 0; i < best; ++i) {
    for (uint32_t n = 0; n < node_pages(); ++n) {
      const KvPolicy& group = layout_.groups[layout_.node_pages[n].group];
      if (layout_.page_index(n, i) < group.first_page_seen(match.tokens) || where(n, i) != tier) continue;
      match.pages.push_back({n, i});
      match.bytes += layout_.node_page_bytes(n);
    }
  }
  return match;
}

uint64_t KvCache::touch(const SaltedTokens& tokens) {
  const Path path = find(tokens);
  touch_chain(path.nodes.empty() ? PrefixIndex::kRoot : path.nodes.back());
  if (host_ != nullptr) host_->touch_along(tokens);
  if (tier_ != nullptr) tier_->touch_along(tokens);
  if (remote_ != nullptr) remote_->touch_along(tokens);
  return use_;
}

std::optional<PageRef> KvCache::take_unused(uint32_t group, uint64_t use) {
  PagePool& pool = *pools_[group];
  if (pool.free_pages() == 0) {
    const auto oldest = pool.least_recently_used();
    if (!oldest || pool.last_use(*oldest) >= use) return std::nullopt;
    evict(group, *oldest);
  }
  return pool.take();
}

bool KvCache::bring_back(uint32_t node_page, const SaltedTokens& prefix,
                         std::shared_ptr<const std::byte[]> bytes, uint64_t use, KvEventKind kind) {
  const uint32_t group = layout_.node_pages[node_page].group;
  CHECK(options_.sharing && prefix.size() > 0 && prefix.size() % node_tokens() == 0);
  const auto walk = [&](std::optional<PrefixNodeId> at, auto&& next_of) {
    for (size_t i = 0; at && i < prefix.size(); i += node_tokens())
      at = next_of(*at, prefix.tokens.subspan(i, node_tokens()));
    return at;
  };
  const auto known = walk(index_.root(prefix.salt), [&](PrefixNodeId at, std::span<const TokenId> tokens) {
    return index_.child(at, tokens);
  });
  if (known && index_.node(*known).pages[node_page]) return true;  // it was computed meanwhile
  const std::optional<PageRef> taken = take_unused(group, use);
  if (!taken) return false;
  // Only now: evicting may have removed nodes that hold nothing.
  const PrefixNodeId root = index_.root_or_add(prefix.salt);
  const PrefixNodeId id = *walk(root, [&](PrefixNodeId at, std::span<const TokenId> tokens) {
    const auto next = index_.child(at, tokens);
    return next ? next : std::optional(index_.add(at, tokens));
  });
  const PageRef& page = *taken;
  moves_.list.push_back({.group = group,
                         .bytes = page_bytes(group),
                         .to = place_of(group, page.id()),
                         .host_from = bytes.get()});
  moves_.held.push_back(std::move(bytes));
  publish_as(id, node_page, page.id(), use);
  record(kind, group, page.id(), layout_.page_index(node_page, index_.node(id).depth), {});
  return true;
}

}  // namespace quire
