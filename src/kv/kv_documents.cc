#include <algorithm>
#include <numeric>

#include "base/check.h"
#include "base/error.h"
#include "kv/kv_cache.h"

// Texts that were pruned and that others begin with. A text's tokens are nodes of the index under a salt that no other text has, so it
// is found, compared token by token, evicted and saved like a prefix. It has fewer pages than nodes: they are those of the last nodes,
// so that no node goes before its text is of no use. What a head's rows are in is beside that, as a page alone does not say it.

namespace quire {

void PrunedDocument::check(const KvLayout& layout) const {
  const auto wrong = [](const char* what) { throw Error("a pruned text {}", what); };
  if (!KvCache::may_share_documents(layout)) wrong("cannot be shared in a cache of this layout");
  if (rows == 0 || rows % layout.node_tokens != 0) wrong("does not have the rows of whole pages");
  const auto is_printable = [](char c) { return c > ' ' && c < 127; };
  if (name.empty() || name.size() > 96 || !std::ranges::all_of(name, is_printable)) wrong("has no name");
  if (head_cells.empty()) return;
  const uint64_t heads = layout.groups.front().cells(), pages = rows / layout.node_tokens;
  if (head_cells.size() != heads || !layout.groups.front().has_equal_cells()) wrong("has other heads");
  std::vector<bool> taken(heads * pages);
  uint64_t given = 0;
  for (const std::vector<uint32_t>& cells : head_cells) {
    if (cells.empty()) wrong("has a head without rows");
    for (const uint32_t cell : cells) {
      if (cell >= taken.size() || taken[cell]) wrong("has rows where none can be");
      taken[cell] = true;
      ++given;
    }
  }
  if (given != taken.size()) wrong("lacks rows");
}

bool KvCache::may_share_documents(const KvLayout& layout) {
  return layout.groups.size() == 1 && layout.groups.front().keeps_all() && !layout.has_states() &&
         layout.node_pages.size() == 1;
}

std::vector<PrefixNodeId> KvCache::document_nodes(const SaltedTokens& document) const {
  std::vector<PrefixNodeId> nodes;
  const std::optional<PrefixNodeId> root = index_.root(document.salt);
  if (!root) return nodes;
  PrefixNodeId at = *root;
  for (size_t begin = 0; begin < document.size(); begin += node_tokens()) {
    const auto tokens =
        document.tokens.subspan(begin, std::min<size_t>(node_tokens(), document.size() - begin));
    const auto& children = index_.node(at).children;
    const auto next = std::ranges::find_if(
        children, [&](PrefixNodeId id) { return std::ranges::equal(index_.node(id).tokens, tokens); });
    if (next == children.end()) return {};
    nodes.push_back(at = *next);
  }
  return nodes;
}

void KvCache::forget_gone_documents() {
  std::erase_if(documents_, [&](const auto& one) { return !index_.root(one.first); });
}

void KvCache::publish_document(const PageTable& table, const SaltedTokens& document,
                               const std::string& name) {
  CHECK(document.salt.pruned != 0 && table.pruned_ && may_share_documents(layout_));
  const uint32_t rows = table.reserved_tokens_, pages = rows / node_tokens();
  CHECK(rows % node_tokens() == 0 && rows > 0 && rows < document.size());
  if (!options_.sharing) return;
  forget_gone_documents();
  // Of one whose last pages were evicted the first nodes are there.
  std::vector<PrefixNodeId> nodes;
  PrefixNodeId at = index_.root_or_add(document.salt);
  for (size_t begin = 0; begin < document.size(); begin += node_tokens()) {
    const auto tokens =
        document.tokens.subspan(begin, std::min<size_t>(node_tokens(), document.size() - begin));
    const std::vector<PrefixNodeId>& children = index_.node(at).children;
    if (children.empty()) {
      at = index_.add(at, tokens);
    } else if (std::ranges::equal(index_.node(children.front()).tokens, tokens)) {
      at = children.front();
    } else {
      return;  // another text has this salt: a salt has one
    }
    nodes.push_back(at);
  }
  ++use_;
  for (uint32_t i = 0; i < pages; ++i) {
    const PrefixNodeId node = nodes[nodes.size() - pages + i];
    const PageId page = table.groups_.front().pages[i]->id();
    if (index_.node(node).pages.front()) continue;  // the same bytes
    publish_as(node, 0, page, use_);
    record(KvEventKind::published, 0, page, i, table.owner_);
  }
  documents_[document.salt] = {name, rows, table.groups_.front().head_cells};
}

std::optional<uint32_t> KvCache::lookup_document(const SaltedTokens& document) const {
  const auto found = documents_.find(document.salt);
  if (!options_.sharing || found == documents_.end()) return std::nullopt;
  const std::vector<PrefixNodeId> nodes = document_nodes(document);
  const uint32_t pages = found->second.rows / node_tokens();
  if (nodes.size() < pages || found->second.rows >= document.size()) return std::nullopt;
  const auto own = std::span(nodes).last(pages);
  const bool whole =
      std::ranges::all_of(own, [&](PrefixNodeId id) { return index_.node(id).pages.front().has_value(); });
  return whole ? std::optional(found->second.rows) : std::nullopt;
}

std::optional<uint32_t> KvCache::attach_document(PageTable& table, const SaltedTokens& document) {
  CHECK(table.reserved_tokens_ == 0 && table.published_ == 0);
  const std::optional<uint32_t> rows = lookup_document(document);
  if (!rows) return std::nullopt;
  const std::vector<PrefixNodeId> nodes = document_nodes(document);
  touch_chain(nodes.back());
  PageTable::Group& group = table.groups_.front();
  for (const PrefixNodeId id : std::span(nodes).last(*rows / node_tokens()))
    group.pages.push_back(share(0, *index_.node(id).pages.front(), table, uint32_t(group.pages.size())));
  group.head_cells = documents_.at(document.salt).head_cells;
  table.reserved_tokens_ = *rows;
  table.pruned_ = true;
  return rows;
}

bool KvCache::fits_after(const SaltedTokens& document, uint32_t rows, uint32_t headroom) const {
  const uint32_t pages = lookup_document(document).value() / node_tokens();
  const std::vector<PrefixNodeId> nodes = document_nodes(document);
  uint32_t cached = 0;
  for (const PrefixNodeId id : std::span(nodes).last(pages))
    cached += pools_.front()->shares(*index_.node(id).pages.front()) == 0 ? 1 : 0;
  const uint32_t all = layout_.groups.front().pages_covering(rows + 1);
  return (all > pages ? all - pages : 0) + headroom <=
         pools_.front()->free_pages() + pools_.front()->cached_pages() - cached;
}

std::vector<KvCache::DocumentState> KvCache::documents() const {
  std::vector<DocumentState> states;
  for (const auto& [salt, document] : documents_) {
    const std::optional<PrefixNodeId> root = index_.root(salt);
    if (!root) continue;
    DocumentState& state = states.emplace_back();
    state = {.name = document.name, .salt = salt, .rows = document.rows};
    for (PrefixNodeId at = *root; !index_.node(at).children.empty();) {
      at = index_.node(at).children.front();
      state.pages += index_.node(at).pages.front() ? 1 : 0;
    }
    state.bytes = state.pages * page_bytes(0);
  }
  return states;
}

}  // namespace quire
