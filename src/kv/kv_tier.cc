#include <algorithm>
#include <utility>

#include "base/check.h"
#include "kv/disk_tier.h"
#include "kv/kv_cache.h"

// How pages go to the disk when their memory is needed, and come back.

namespace quire {

void KvCache::store_on_disk(uint32_t group, PageId page, PrefixNodeId id) {
  const uint32_t index = index_.node(id).depth;
  std::vector<TokenId> prefix(size_t(index + 1) * page_tokens());
  for (PrefixNodeId at = id; at != PrefixIndex::kRoot; at = index_.node(at).parent) {
    const PrefixIndex::Node& node = index_.node(at);
    std::ranges::copy(node.tokens, prefix.begin() + ptrdiff_t(size_t(node.depth) * page_tokens()));
  }
  const DiskTier::Place place = tier_->store(group, {prefix, index_.node(id).salt});
  if (place.stored != DiskTier::Stored::queued) return;
  moves_.list.push_back({.group = group,
                         .bytes = page_bytes(group),
                         .from = place_of(group, page),
                         .host_to = place.bytes,
                         .stored_as = place.ticket});
  record(KvEventKind::stored, group, page, index, {});
}

uint32_t KvCache::first_page_seen(uint32_t group, uint32_t tokens) const {
  const uint32_t window = layout_.groups[group].window;
  return window == 0 || tokens + 1 <= window ? 0 : (tokens + 1 - window) / page_tokens();
}

DiskMatch KvCache::lookup_on_disk(const SaltedTokens& tokens) const {
  DiskMatch match;
  match.memory_tokens = match.tokens = lookup(tokens).tokens;
  if (tier_ == nullptr || !options_.sharing || tokens.size() == 0) return match;
  const SaltedTokens wanted = tokens.first(tokens.size() - 1);  // the last is always computed
  const std::vector<std::vector<bool>> on_disk = tier_->pages_along(wanted);
  const std::vector<PrefixNodeId> in_memory = find(tokens).nodes;
  enum class Where : uint8_t { nowhere, memory, disk };
  const auto where = [&](uint32_t group, uint32_t index) {
    if (index < in_memory.size() && index_.node(in_memory[index]).pages[group]) return Where::memory;
    return index < on_disk.size() && on_disk[index][group] ? Where::disk : Where::nowhere;
  };
  // By group: how many pages from here back are in either place.
  std::vector<uint32_t> there(pools_.size(), 0);
  const uint32_t most = uint32_t(std::max(in_memory.size(), on_disk.size()));
  uint32_t best = 0;
  for (uint32_t i = 0; i < most; ++i) {
    bool usable = true;
    for (uint32_t g = 0; g < pools_.size(); ++g) {
      there[g] = where(g, i) == Where::nowhere ? 0 : there[g] + 1;
      usable &= there[g] >= i + 1 - first_page_seen(g, (i + 1) * page_tokens());
    }
    if (usable) best = i + 1;
  }
  if (best * page_tokens() <= match.memory_tokens) return match;
  match.tokens = best * page_tokens();
  for (uint32_t i = 0; i < best; ++i) {
    for (uint32_t g = 0; g < pools_.size(); ++g) {
      if (i < first_page_seen(g, match.tokens) || where(g, i) != Where::disk) continue;
      match.pages.push_back({g, i});
      match.bytes += page_bytes(g);
    }
  }
  return match;
}

uint64_t KvCache::touch(const SaltedTokens& tokens) {
  const Path path = find(tokens);
  touch_chain(path.nodes.empty() ? PrefixIndex::kRoot : path.nodes.back());
  if (tier_ != nullptr) tier_->touch_along(tokens);
  return use_;
}

bool KvCache::bring_back(uint32_t group, const SaltedTokens& prefix, std::shared_ptr<const std::byte[]> bytes,
                         uint64_t use) {
  CHECK(options_.sharing && prefix.size() > 0 && prefix.size() % page_tokens() == 0);
  const auto walk = [&](std::optional<PrefixNodeId> at, auto&& next_of) {
    for (size_t i = 0; at && i < prefix.size(); i += page_tokens())
      at = next_of(*at, prefix.tokens.subspan(i, page_tokens()));
    return at;
  };
  const auto known = walk(index_.root(prefix.salt), [&](PrefixNodeId at, std::span<const TokenId> tokens) {
    return index_.child(at, tokens);
  });
  if (known && index_.node(*known).pages[group]) return true;  // it was computed meanwhile
  PagePool& pool = *pools_[group];
  if (pool.free_pages() == 0) {
    const auto oldest = pool.least_recently_used();
    if (!oldest || pool.last_use(*oldest) >= use) return false;
    evict(group, *oldest);
  }
  // Only now: evicting may have removed nodes that hold nothing.
  const PrefixNodeId root = index_.root_or_add(prefix.salt);
  const PrefixNodeId id = *walk(root, [&](PrefixNodeId at, std::span<const TokenId> tokens) {
    const auto next = index_.child(at, tokens);
    return next ? next : std::optional(index_.add(at, tokens));
  });
  const PageRef page = *pool.take();
  moves_.list.push_back({.group = group,
                         .bytes = page_bytes(group),
                         .to = place_of(group, page.id()),
                         .host_from = bytes.get()});
  moves_.held.push_back(std::move(bytes));
  index_.node(id).pages[group] = page.id();
  node_of_page_[group][page.id().value] = id;
  pool.publish(page.id());
  pool.touch(page.id(), use, index_.node(id).depth);
  record(KvEventKind::loaded, group, page.id(), index_.node(id).depth, {});
  return true;
}

}  // namespace quire
