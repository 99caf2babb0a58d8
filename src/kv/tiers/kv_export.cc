#include "kv/tiers/kv_export.h"

#include <algorithm>
#include <numeric>
#include <utility>

#include "base/check.h"
#include "base/error.h"

namespace quire {

// ---- out ---------------------------------------------------------------------------------------------------------

KvExport::KvExport(KvCache& kv) : kv_(kv), age_(kv.age_) {
  struct Found {
    PrefixNodeId id;
    uint32_t parent;     // place in `found`
    uint64_t use = 0;    // of it or of anything after it
    uint32_t place = 0;  // in the order of the export
  };
  std::vector<Found> found;
  for (PrefixNodeId root : kv_.index_.roots()) found.push_back({root, uint32_t(found.size())});
  const uint32_t roots = uint32_t(found.size());  // are not exported themselves
  for (uint32_t i = 0; i < found.size(); ++i) {   // grows: parents before children
    const PrefixIndex::Node& node = kv_.index_.node(found[i].id);
    for (size_t n = 0; n < node.pages.size(); ++n) {
      const PagePool& pool = *kv_.pools_[kv_.layout_.node_pages[n].group];
      if (node.pages[n]) found[i].use = std::max(found[i].use, pool.last_use(*node.pages[n]));
    }
    for (PrefixNodeId child : node.children) found.push_back({child, i});
  }
  for (size_t i = found.size(); i-- > roots;)
    found[found[i].parent].use = std::max(found[found[i].parent].use, found[i].use);
  std::vector<uint32_t> order(found.size() - roots);
  std::iota(order.begin(), order.end(), roots);
  // A parent is used no earlier than its children, and equals stay in order: it comes before them.
  std::ranges::stable_sort(order, [&](uint32_t a, uint32_t b) { return found[a].use > found[b].use; });
  nodes_.reserve(order.size());
  for (uint32_t i : order) {
    found[i].place = uint32_t(nodes_.size());
    add(found[i].id, found[i].parent < roots ? KvNode::kNoParent : found[found[i].parent].place);
  }
}

KvExport::KvExport(KvCache& kv, const SaltedTokens& salted) : kv_(kv), age_(kv.age_) {
  const std::optional<PrefixNodeId> root = kv_.index_.root(salted.salt);
  if (!root) return;
  PrefixNodeId at = *root;
  std::span<const TokenId> tokens = salted.tokens;
  nodes_.reserve(tokens.size() / kv_.node_tokens() + 1);
  const auto parent = [&] { return nodes_.empty() ? KvNode::kNoParent : uint32_t(nodes_.size() - 1); };
  while (tokens.size() >= kv_.node_tokens()) {
    const auto next = kv_.index_.child(at, tokens.first(kv_.node_tokens()));
    if (!next) break;
    at = *next;
    add(at, parent());
    tokens = tokens.subspan(kv_.node_tokens());
  }
  const PrefixIndex::Longest rest = kv_.index_.longest_child(at, tokens, kv_.parts());
  // One that goes on otherwise belongs to somebody else.
  if (rest.tokens > 0 && kv_.index_.node(rest.node).tokens.size() == rest.tokens) add(rest.node, parent());
}

KvExport::~KvExport() {
  if (kv_.age_ != age_) return;
  for (const Place& place : nodes_) kv_.index_.drop(place.id);
}

void KvExport::add(PrefixNodeId id, uint32_t parent) {
  kv_.index_.hold(id);
  nodes_.push_back({id, parent});
}

KvNode KvExport::node_at(const Place& place, KvMoves& moves) const {
  const PrefixIndex::Node& node = kv_.index_.node(place.id);
  KvNode copy{.parent = place.parent, .tokens = node.tokens, .pages = {}};
  if (place.parent == KvNode::kNoParent) copy.salt = node.salt;
  for (uint32_t n = 0; n < node.pages.size(); ++n) {
    const uint32_t g = kv_.layout_.node_pages[n].group;
    std::vector<std::byte>& page = copy.pages.emplace_back();
    if (!node.pages[n]) continue;
    page.resize(kv_.page_bytes(g));
    moves.list.push_back(
        {.group = g, .bytes = page.size(), .from = kv_.place_of(g, *node.pages[n]), .host_to = page.data()});
  }
  return copy;
}

std::vector<KvNode> KvExport::take(size_t bytes, const MakeMoves& make) {
  std::vector<KvNode> taken;
  KvMoves moves;
  if (kv_.age_ != age_) return taken;
  for (size_t copied = 0; next_ < nodes_.size() && (taken.empty() || copied < bytes); ++next_) {
    taken.push_back(node_at(nodes_[next_], moves));
    for (const auto& page : taken.back().pages) copied += page.size();
  }
  make(moves);
  return taken;
}

// ---- in ----------------------------------------------------------------------------------------------------------

KvImport::KvImport(KvCache& kv) : kv_(kv) {
  if (!kv_.options_.sharing)
    throw Error("the KV cache shares nothing in this run, so nothing can be restored");
}

std::optional<PrefixNodeId> KvImport::find(PrefixNodeId parent, std::span<const TokenId> tokens) const {
  if (tokens.size() == kv_.node_tokens()) return kv_.index_.child(parent, tokens);
  for (PrefixNodeId child : kv_.index_.node(parent).children) {
    if (std::ranges::equal(kv_.index_.node(child).tokens, tokens)) return child;
  }
  return std::nullopt;
}

bool KvImport::wants(const KvNode& node, size_t page, const std::optional<PrefixNodeId>& known) const {
  return !node.pages[page].empty() && !(known && kv_.index_.node(*known).pages[page]);
}

// The node that the cache has in its place: the same, or one that begins with its tokens and has all it brings.
std::optional<PrefixNodeId> KvImport::known_in_place_of(const KvNode& node) const {
  const std::optional<PrefixNodeId> parent =
      node.parent == KvNode::kNoParent ? kv_.index_.root(node.salt) : staged_[node.parent].node;
  if (!parent) return std::nullopt;
  if (const auto same = find(*parent, node.tokens)) return same;
  if (kv_.layout_.has_states()) return std::nullopt;
  const PrefixIndex::Longest longer = kv_.index_.longest_child(*parent, node.tokens);
  if (longer.tokens < node.tokens.size()) return std::nullopt;
  for (size_t n = 0; n < node.pages.size(); ++n) {
    if (wants(node, n, longer.node)) return std::nullopt;
  }
  return longer.node;
}

void KvImport::add(const KvNode& node, const MakeMoves& make) {
  CHECK(!node.tokens.empty() && node.tokens.size() <= kv_.node_tokens());
  CHECK(node.pages.size() == kv_.node_pages());
  const auto leave_out = [&] {
    ++result_.nodes_left_out;
    result_.tokens_left_out += node.tokens.size();
  };
  if (result_.nodes_left_out > 0) return leave_out();
  CHECK(node.parent == KvNode::kNoParent ||
        (node.parent < staged_.size() && staged_[node.parent].tokens.size() == kv_.node_tokens()));
  const std::optional<PrefixNodeId> known = known_in_place_of(node);
  std::vector<uint32_t> wanted(kv_.pools_.size());
  for (size_t n = 0; n < node.pages.size(); ++n) {
    const uint32_t g = kv_.layout_.node_pages[n].group;
    if (wants(node, n, known) && ++wanted[g] > kv_.pools_[g]->free_pages()) return leave_out();
  }
  Staged& staged = staged_.emplace_back(Staged{node.parent, node.salt, node.tokens, {}, known});
  KvMoves moves;
  for (uint32_t n = 0; n < node.pages.size(); ++n) {
    const uint32_t g = kv_.layout_.node_pages[n].group;
    staged.pages.emplace_back();
    if (!wants(node, n, known)) continue;
    CHECK(node.pages[n].size() == kv_.page_bytes(g));
    staged.pages.back() = kv_.pools_[g]->take();
    moves.list.push_back({.group = g,
                          .bytes = node.pages[n].size(),
                          .to = kv_.place_of(g, staged.pages.back()->id()),
                          .host_from = node.pages[n].data()});
  }
  make(moves);
}

PrefixNodeId KvImport::parent_of(const Staged& staged) {
  return staged.parent == KvNode::kNoParent ? kv_.index_.root_or_add(staged.salt)
                                            : *staged_[staged.parent].node;
}

void KvImport::publish(Staged& staged, uint64_t use) {
  for (uint32_t n = 0; n < staged.pages.size(); ++n) {
    const PrefixIndex::Node& node = kv_.index_.node(*staged.node);
    if (!staged.pages[n] || node.pages[n]) continue;
    const uint32_t g = kv_.layout_.node_pages[n].group;
    const PageId page = staged.pages[n]->id();
    kv_.publish_as(*staged.node, n, page, use);
    kv_.record(KvEventKind::restored, g, page, kv_.layout_.page_index(n, node.depth), {});
    ++result_.pages;
    result_.bytes += kv_.page_bytes(g);
  }
  staged.pages.clear();
}

KvImport::Result KvImport::commit() {
  for (size_t i = 0; i < staged_.size(); ++i) {
    Staged& staged = staged_[i];
    const PrefixNodeId parent = parent_of(staged);
    if (!staged.node) staged.node = find(parent, staged.tokens);
    if (!staged.node) staged.node = kv_.index_.add(parent, staged.tokens);
    publish(staged, kv_.use_ + staged_.size() - i);  // the first was used last, and goes last
    ++result_.nodes;
    result_.tokens += staged.tokens.size();
  }
  kv_.use_ += staged_.size();
  for (size_t i = staged_.size(); i-- > 0;) {
    if (kv_.index_.node(*staged_[i].node).alive) kv_.index_.prune(*staged_[i].node);
  }
  staged_.clear();
  return std::exchange(result_, {});
}

}  // namespace quire
