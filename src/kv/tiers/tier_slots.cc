#include "kv/tiers/tier_slots.h"

#include <algorithm>
#include <utility>

#include "base/check.h"

namespace quire {

uint64_t TierSlots::node_bytes(const KvLayout& layout) {
  uint64_t bytes = 0;
  for (uint32_t n = 0; n < layout.node_pages.size(); ++n) bytes += layout.node_page_bytes(n);
  return bytes;
}

TierSlots::TierSlots(const KvLayout& layout, uint64_t bytes, BlockPlace place)
    : node_pages_(layout.node_pages),
      node_tokens_(layout.node_tokens),
      tree_(layout.node_pages.size(), layout.node_tokens, 0),
      news_(layout, place) {
  const uint64_t nodes = std::min<uint64_t>(bytes / node_bytes(layout), UINT32_MAX / node_tokens_);
  for (const KvGroupLayout& layout_of : layout.groups) {
    Group& group = groups_.emplace_back();
    const uint64_t slots = nodes * (node_tokens_ / layout_of.page_tokens);
    group.page_bytes = layout_of.page_bytes;
    group.slots.resize(slots);
    group.free.reserve(slots);
    for (uint64_t slot = slots; slot-- > 0;) group.free.push_back(uint32_t(slot));
    capacity_bytes_ += slots * group.page_bytes;
  }
}

std::optional<PrefixNodeId> TierSlots::find_node(const SaltedTokens& prefix) const {
  std::optional<PrefixNodeId> at = tree_.root(prefix.salt);
  for (size_t i = 0; at && i < prefix.size(); i += node_tokens_)
    at = tree_.child(*at, prefix.tokens.subspan(i, node_tokens_));
  return at;
}

PrefixNodeId TierSlots::find_or_add(const SaltedTokens& prefix) {
  CHECK(prefix.size() > 0 && prefix.size() % node_tokens_ == 0);
  PrefixNodeId at = tree_.root_or_add(prefix.salt);
  for (size_t i = 0; i < prefix.size(); i += node_tokens_) {
    const auto tokens = prefix.tokens.subspan(i, node_tokens_);
    const auto next = tree_.child(at, tokens);
    at = next ? *next : tree_.add(at, tokens);
  }
  return at;
}

std::optional<uint32_t> TierSlots::find(uint32_t node_page, const SaltedTokens& prefix) const {
  const auto node = find_node(prefix);
  if (!node || tree_.is_root(*node) || !tree_.node(*node).pages[node_page]) return std::nullopt;
  return tree_.node(*node).pages[node_page]->value;
}

uint32_t TierSlots::take_at(PrefixNodeId node, uint32_t node_page) {
  CHECK(tree_.node(node).tokens.size() == node_tokens_ && !tree_.node(node).pages[node_page]);
  Group& group = groups_[group_of(node_page)];
  const uint32_t index = group.free.back();
  group.free.pop_back();
  Slot& slot = group.slots[index];
  slot.node = node;
  slot.node_page = node_page;
  slot.place = group.uses.insert(group.uses.end(), index);
  tree_.node(slot.node).pages[node_page] = PageId{index};
  news_.came(tree_, slot.node, node_page);
  ++pages_;
  used_bytes_ += group.page_bytes;
  return index;
}

void TierSlots::forget(uint32_t g, uint32_t slot, Then then) {
  Group& group = groups_[g];
  const uint32_t node_page = group.slots[slot].node_page;
  const PrefixNodeId node = std::exchange(group.slots[slot].node, PrefixIndex::kRoot);
  group.uses.erase(group.slots[slot].place);
  if (then == Then::free) give_back(g, slot);
  news_.goes(tree_, node, node_page);
  tree_.node(node).pages[node_page].reset();
  tree_.prune(node);
  --pages_;
  used_bytes_ -= group.page_bytes;
}

void TierSlots::touch(uint32_t g, uint32_t slot) {
  Group& group = groups_[g];
  group.uses.splice(group.uses.end(), group.uses, group.slots[slot].place);
}

std::vector<std::vector<bool>> TierSlots::pages_along(const SaltedTokens& salted) const {
  std::vector<std::vector<bool>> pages;
  std::optional<PrefixNodeId> at = tree_.root(salted.salt);
  std::span<const TokenId> tokens = salted.tokens;
  for (; at && tokens.size() >= node_tokens_; tokens = tokens.subspan(node_tokens_)) {
    at = tree_.child(*at, tokens.first(node_tokens_));
    if (!at) break;
    std::vector<bool>& has = pages.emplace_back();
    for (const auto& slot : tree_.node(*at).pages) has.push_back(slot.has_value());
  }
  return pages;
}

void TierSlots::touch_along(const SaltedTokens& tokens) {
  const size_t known = pages_along(tokens).size();
  if (known == 0) return;
  PrefixNodeId at = *find_node(tokens.first(known * node_tokens_));
  for (; at != PrefixIndex::kRoot; at = tree_.node(at).parent) {
    for (uint32_t n = 0; n < node_pages_.size(); ++n) {
      if (const auto& slot = tree_.node(at).pages[n]) touch(group_of(n), slot->value);
    }
  }
}

std::vector<TokenId> TierSlots::tokens_of(uint32_t group, uint32_t index) const {
  const PrefixNodeId node = slot(group, index).node;
  std::vector<TokenId> tokens(size_t(tree_.node(node).depth + 1) * node_tokens_);
  for (PrefixNodeId at = node; !tree_.is_root(at); at = tree_.node(at).parent) {
    const PrefixIndex::Node& part = tree_.node(at);
    std::ranges::copy(part.tokens, tokens.begin() + ptrdiff_t(size_t(part.depth) * node_tokens_));
  }
  return tokens;
}

CacheSalt TierSlots::salt_of(uint32_t group, uint32_t index) const {
  return tree_.node(slot(group, index).node).salt;
}

void TierSlots::forget_all() {
  tree_.forget_all();
  for (Group& group : groups_) {
    group.uses.clear();
    group.free.clear();
    for (uint32_t slot = uint32_t(group.slots.size()); slot-- > 0;) {
      group.slots[slot] = {};
      group.free.push_back(slot);
    }
  }
  pages_ = used_bytes_ = 0;
}

void TierSlots::check_invariants() const {
  tree_.check_invariants();
  uint64_t pages = 0, bytes = 0;
  for (uint32_t g = 0; g < groups_.size(); ++g) {
    const Group& group = groups_[g];
    CHECK(group.free.size() + group.uses.size() <= group.slots.size());
    for (uint32_t slot : group.uses) {
      const PrefixIndex::Node& node = tree_.node(group.slots[slot].node);
      CHECK(node.alive && node.pages[group.slots[slot].node_page] == PageId{slot});
      CHECK(group_of(group.slots[slot].node_page) == g);
    }
    for (uint32_t slot : group.free) CHECK(group.slots[slot].node == PrefixIndex::kRoot);
    pages += group.uses.size();
    bytes += group.uses.size() * group.page_bytes;
  }
  CHECK(pages == pages_ && bytes == used_bytes_ && bytes <= capacity_bytes_);
}

}  // namespace quire
