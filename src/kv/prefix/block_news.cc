#include "kv/prefix/block_news.h"

#include <algorithm>

namespace quire {
namespace {

// What a node's being there depends on: pages that keep everything, or else those behind windows, or else states.
std::vector<bool> needed_pages(const KvLayout& layout) {
  const auto rank = [&](const KvLayout::NodePage& page) {
    const KvPolicy& group = layout.groups[page.group];
    return group.is_state ? 2 : group.keeps_all() ? 0 : 1;
  };
  int best = 2;
  for (const KvLayout::NodePage& page : layout.node_pages) best = std::min(best, rank(page));
  std::vector<bool> needed;
  for (const KvLayout::NodePage& page : layout.node_pages) needed.push_back(rank(page) == best);
  return needed;
}

}  // namespace

BlockNews::BlockNews(const KvLayout& layout, BlockPlace place)
    : place_(place), node_tokens_(layout.node_tokens), needed_(needed_pages(layout)) {}

bool BlockNews::counts(const PrefixIndex::Node& node, uint32_t node_page) const {
  if (!needed_[node_page] || !node.salt.is_none() || node.tokens.size() < node_tokens_) return false;
  for (size_t n = 0; n < needed_.size(); ++n) {
    if (needed_[n] && !node.pages[n]) return false;
  }
  return true;
}

void BlockNews::tell_stored(const PrefixIndex& index, PrefixNodeId id) const {
  const PrefixIndex::Node& node = index.node(id);
  StoredBlock block{.hash = node.hash, .parent = {}, .tokens = node.tokens, .place = place_};
  if (!index.is_root(node.parent)) block.parent = index.node(node.parent).hash;
  listener_->stored(block);
}

}  // namespace quire
