#include "kv/tiers/kv_export.h"

#include <algorithm>
#include <numeric>
#include <utility>

#include "base/check.h"
#include "base/error.h"
#include "kv/tiers/host_tier.h"

namespace quire {

// ---- out ---------------------------------------------------------------------------------------------------------

namespace {

PrefixIndex* host_tree_of(const KvCache& kv) {
  return kv.host() == nullptr ? nullptr : &kv.host()->tree();
}

}  // namespace

std::vector<KvExport::Both> KvExport::roots() const {
  std::vector<Both> roots;
  for (PrefixNodeId root : kv_.index_.roots())
    roots.push_back({root, host_ ? host_->root(kv_.index_.node(root).salt) : std::nullopt});
  if (host_ == nullptr) return roots;
  for (PrefixNodeId root : host_->roots()) {
    if (!kv_.index_.root(host_->node(root).salt)) roots.push_back({std::nullopt, root});
  }
  return roots;
}

KvExport::Both KvExport::child_of(const Both& parent, std::span<const TokenId> tokens) const {
  Both child;
  if (parent.here) child.here = kv_.index_.child(*parent.here, tokens);
  if (parent.host) child.host = host_->child(*parent.host, tokens);
  return child;
}

void KvExport::add_children(const Both& parent, std::vector<Both>& children) const {
  const auto add_of = [&](const PrefixIndex& tree, PrefixNodeId id, bool here) {
    for (PrefixNodeId child : tree.node(id).children) {
      const std::vector<TokenId>& tokens = tree.node(child).tokens;
      if (tokens.size() < kv_.node_tokens()) {
        children.push_back({child, std::nullopt});  // the tier has full ones only
      } else if (const Both both = child_of(parent, tokens); here || !both.here) {
        children.push_back(both);
      }
    }
  };
  if (parent.here) add_of(kv_.index_, *parent.here, true);
  if (parent.host) add_of(*host_, *parent.host, false);
}

KvExport::KvExport(KvCache& kv) : kv_(kv), host_(host_tree_of(kv)), age_(kv.age_) {
  struct Found {
    Both node;
    uint32_t parent;     // place in `found`
    uint64_t use = 0;    // of it or of anything after it, in memory
    uint32_t place = 0;  // in the order of the export
  };
  std::vector<Found> found;
  for (const Both& root : roots()) found.push_back({root, uint32_t(found.size())});
  const uint32_t roots = uint32_t(found.size());  // are not exported themselves
  std::vector<Both> children;
  for (uint32_t i = 0; i < found.size(); ++i) {  // grows: parents before children
    const Both node = found[i].node;
    for (size_t n = 0; node.here && n < kv_.index_.node(*node.here).pages.size(); ++n) {
      const PagePool& pool = *kv_.pools_[kv_.layout_.node_pages[n].group];
      if (const auto& page = kv_.index_.node(*node.here).pages[n])
        found[i].use = std::max(found[i].use, pool.last_use(*page));
    }
    children.clear();
    add_children(node, children);
    for (const Both& child : children) found.push_back({child, i});
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
    add(found[i].node, found[i].parent < roots ? KvNode::kNoParent : found[found[i].parent].place);
  }
}

KvExport::KvExport(KvCache& kv, const SaltedTokens& salted)
    : kv_(kv), host_(host_tree_of(kv)), age_(kv.age_) {
  Both at{kv_.index_.root(salted.salt), host_ ? host_->root(salted.salt) : std::nullopt};
  std::span<const TokenId> tokens = salted.tokens;
  nodes_.reserve(tokens.size() / kv_.node_tokens() + 1);
  const auto parent = [&] { return nodes_.empty() ? KvNode::kNoParent : uint32_t(nodes_.size() - 1); };
  while (tokens.size() >= kv_.node_tokens()) {
    const Both next = child_of(at, tokens.first(kv_.node_tokens()));
    if (!next.here && !next.host) break;
    at = next;
    add(at, parent());
    tokens = tokens.subspan(kv_.node_tokens());
  }
  if (!at.here) return;
  const PrefixIndex::Longest rest = kv_.index_.longest_child(*at.here, tokens, kv_.parts());
  // One that goes on otherwise belongs to somebody else.
  if (rest.tokens > 0 && kv_.index_.node(rest.node).tokens.size() == rest.tokens)
    add({rest.node, std::nullopt}, parent());
}

KvExport::~KvExport() {
  if (kv_.age_ != age_) return;
  for (const Place& place : nodes_) {
    if (place.node.here) kv_.index_.drop(*place.node.here);
    if (place.node.host) host_->drop(*place.node.host);
  }
}

void KvExport::add(const Both& node, uint32_t parent) {
  nodes_.push_back({node, parent});
  if (node.here) kv_.index_.hold(*node.here);
  if (node.host) host_->hold(*node.host);
}

KvNode KvExport::node_at(const Place& place, KvMoves& moves) const {
  const PrefixIndex::Node* here = place.node.here ? &kv_.index_.node(*place.node.here) : nullptr;
  const PrefixIndex::Node* host = place.node.host ? &host_->node(*place.node.host) : nullptr;
  const PrefixIndex::Node& either = here != nullptr ? *here : *host;
  KvNode copy{.parent = place.parent, .tokens = either.tokens, .pages = {}};
  if (place.parent == KvNode::kNoParent) copy.salt = either.salt;
  if (copy.salt.pruned != 0) copy.document = kv_.documents_.at(copy.salt);
  for (uint32_t n = 0; n < kv_.node_pages(); ++n) {
    const uint32_t g = kv_.layout_.node_pages[n].group;
    std::vector<std::byte>& page = copy.pages.emplace_back();
    const bool is_here = here != nullptr && here->pages[n];
    if (!is_here && (host == nullptr || !host->pages[n])) continue;
    page.resize(kv_.page_bytes(g));
    KvMove move{.group = g, .bytes = page.size(), .host_to = page.data()};
    if (is_here) {
      move.from = kv_.place_of(g, *here->pages[n]);
    } else {
      move.host_from = kv_.host()->bytes_of(g, host->pages[n]->value);
    }
    moves.list.push_back(move);
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
  Staged& staged =
      staged_.emplace_back(Staged{node.parent, node.salt, node.document, node.tokens, {}, known});
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
    if (staged.document) kv_.documents_.try_emplace(staged.salt, *std::move(staged.document));
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
