#include "kv/prefix/prefix_index.h"

#include <algorithm>
#include <cstring>

#define XXH_INLINE_ALL
#include <xxhash.h>

#include "base/check.h"

namespace quire {
namespace {

constexpr size_t kRememberedEvictions = 1 << 16;

uint32_t common_prefix(std::span<const TokenId> a, std::span<const TokenId> b) {
  const size_t most = std::min(a.size(), b.size());
  size_t n = 0;
  while (n < most && a[n] == b[n]) ++n;
  return uint32_t(n);
}

}  // namespace

PrefixIndex::PrefixIndex(size_t node_pages, uint32_t node_tokens, uint64_t salt)
    : node_pages_(node_pages), node_tokens_(node_tokens), salt_(salt) {
  nodes_.push_back({.parent = kRoot, .hash = 0, .tokens = {}, .pages = {}, .children = {}, .alive = true});
}

uint64_t PrefixIndex::hash_of(uint64_t parent, std::span<const TokenId> tokens) const {
  return XXH3_64bits_withSeed(tokens.data(), tokens.size_bytes(), parent ^ salt_);
}

uint64_t PrefixIndex::root_hash(CacheSalt salt) const {
  if (salt.is_none()) return 0;
  const uint64_t all[] = {salt.key, salt.text, salt.pruned};
  return XXH3_64bits_withSeed(all, salt.pruned == 0 ? 2 * sizeof(uint64_t) : sizeof(all), salt_);
}

std::optional<PrefixNodeId> PrefixIndex::root(CacheSalt salt) const {
  if (salt.is_none()) return kRoot;
  const auto found = roots_.find(salt);
  return found == roots_.end() ? std::nullopt : std::optional(found->second);
}

PrefixNodeId PrefixIndex::root_or_add(CacheSalt salt) {
  if (const auto known = root(salt)) return *known;
  const PrefixNodeId id = take_id();
  node(id) = {.parent = kRoot,
              .hash = root_hash(salt),
              .salt = salt,
              .tokens = {},
              .pages = std::vector<std::optional<PageId>>(node_pages_),
              .children = {},
              .alive = true};
  roots_.emplace(salt, id);
  return id;
}

std::vector<PrefixNodeId> PrefixIndex::roots() const {
  std::vector<PrefixNodeId> all = {kRoot};
  for (const auto& [salt, id] : roots_) all.push_back(id);
  return all;
}

std::optional<PrefixNodeId> PrefixIndex::child(PrefixNodeId parent, std::span<const TokenId> tokens) const {
  const auto [begin, end] = full_.equal_range(hash_of(node(parent).hash, tokens));
  for (auto it = begin; it != end; ++it) {
    const Node& found = node(it->second);
    if (found.parent == parent && std::ranges::equal(found.tokens, tokens)) return it->second;
  }
  return std::nullopt;
}

PrefixIndex::Longest PrefixIndex::longest_child(PrefixNodeId parent, std::span<const TokenId> tokens,
                                                Of which) const {
  Longest best;
  for (PrefixNodeId child : node(parent).children) {
    const uint32_t common = common_prefix(node(child).tokens, tokens);
    if (which == Of::whole && common < node(child).tokens.size()) continue;
    if (common > best.tokens) best = {child, common};
  }
  return best;
}

PrefixNodeId PrefixIndex::take_id() {
  PrefixNodeId id{uint32_t(nodes_.size())};
  if (unused_.empty()) {
    nodes_.emplace_back();
    unused_.reserve(nodes_.capacity());  // so that a node can be forgotten without memory
  } else {
    id = unused_.back();
    unused_.pop_back();
  }
  return id;
}

PrefixNodeId PrefixIndex::add(PrefixNodeId parent, std::span<const TokenId> tokens) {
  CHECK(!tokens.empty() && tokens.size() <= node_tokens_);
  const PrefixNodeId id = take_id();
  const uint64_t hash = hash_of(node(parent).hash, tokens);
  node(id) = {.parent = parent,
              .hash = hash,
              .salt = node(parent).salt,
              .depth = is_root(parent) ? 0 : node(parent).depth + 1,
              .tokens = {tokens.begin(), tokens.end()},
              .pages = std::vector<std::optional<PageId>>(node_pages_),
              .children = {},
              .alive = true};
  node(parent).children.push_back(id);
  if (tokens.size() == node_tokens_) full_.emplace(hash, id);
  return id;
}

void PrefixIndex::drop(PrefixNodeId id) {
  CHECK(node(id).holders > 0);
  --node(id).holders;
  prune(id);
}

void PrefixIndex::prune(PrefixNodeId id) {
  while (id != kRoot) {
    Node& gone = node(id);
    const bool has_pages = std::ranges::any_of(gone.pages, [](const auto& page) { return page.has_value(); });
    if (has_pages || !gone.children.empty() || gone.holders > 0) return;
    const PrefixNodeId parent = gone.parent;
    if (is_root(id)) {
      roots_.erase(gone.salt);
    } else {
      std::erase(node(parent).children, id);
    }
    if (gone.tokens.size() == node_tokens_) {
      const auto [begin, end] = full_.equal_range(gone.hash);
      full_.erase(std::find_if(begin, end, [&](const auto& entry) { return entry.second == id; }));
    }
    gone = {};
    unused_.push_back(id);
    id = parent;
  }
}

void PrefixIndex::forget_all() {
  nodes_.erase(nodes_.begin() + 1, nodes_.end());
  nodes_.front().children.clear();
  unused_.clear();
  roots_.clear();
  full_.clear();
  evicted_.clear();
  evicted_order_.clear();
}

void PrefixIndex::remember_evicted(PrefixNodeId id, Clock::time_point now) {
  if (node(id).tokens.size() < node_tokens_) return;
  if (evicted_.insert_or_assign(node(id).hash, now).second) evicted_order_.push_back(node(id).hash);
  if (evicted_order_.size() > kRememberedEvictions) {
    evicted_.erase(evicted_order_.front());
    evicted_order_.pop_front();
  }
}

std::optional<Clock::time_point> PrefixIndex::evicted_at(uint64_t parent,
                                                         std::span<const TokenId> tokens) const {
  if (tokens.size() < node_tokens_) return std::nullopt;
  const auto found = evicted_.find(hash_of(parent, tokens.first(node_tokens_)));
  if (found == evicted_.end()) return std::nullopt;
  return found->second;
}

void PrefixIndex::check_invariants() const {
  size_t alive = 0, full = 0;
  for (const auto& [salt, id] : roots_) {
    const Node& n = node(id);
    CHECK(n.alive && n.salt == salt && !salt.is_none() && n.parent == kRoot && n.tokens.empty());
    CHECK(!n.children.empty() || n.holders > 0);
  }
  for (uint32_t i = 1; i < nodes_.size(); ++i) {
    const Node& n = nodes_[i];
    if (!n.alive || root(n.salt) == PrefixNodeId{i}) continue;
    ++alive;
    CHECK(!n.tokens.empty() && node(n.parent).alive && node(n.parent).salt == n.salt);
    CHECK(std::ranges::count(node(n.parent).children, PrefixNodeId{i}) == 1);
    CHECK(n.depth == (is_root(n.parent) ? 0 : node(n.parent).depth + 1));
    const bool is_full = n.tokens.size() == node_tokens_;
    full += is_full ? 1 : 0;
    CHECK(is_full || n.children.empty());
    if (is_full) CHECK(child(n.parent, n.tokens).has_value());
  }
  CHECK(alive == size() && full == full_.size());
}

}  // namespace quire
