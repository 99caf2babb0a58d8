#include "text/byte_trie.h"

#include <algorithm>

namespace quire {

ByteTrie::ByteTrie(std::vector<std::pair<std::string_view, TokenId>> entries) {
  std::stable_sort(entries.begin(), entries.end(),
                   [](const auto& a, const auto& b) { return a.first < b.first; });
  struct Range {
    size_t begin, end, depth;  // entries that share their first `depth` bytes
  };
  std::vector<Range> ranges{{0, entries.size(), 0}};  // one per node, in the order of nodes_
  nodes_.emplace_back();
  for (size_t node = 0; node < nodes_.size(); ++node) {
    const Range range = ranges[node];
    size_t i = range.begin;
    for (; i < range.end && entries[i].first.size() == range.depth; ++i) {
      if (range.depth > 0 && nodes_[node].id == kNone) nodes_[node].id = entries[i].second;
    }
    nodes_[node].first_child = uint32_t(nodes_.size());
    while (i < range.end) {
      const auto label = static_cast<uint8_t>(entries[i].first[range.depth]);
      size_t end = i + 1;
      while (end < range.end && static_cast<uint8_t>(entries[end].first[range.depth]) == label) ++end;
      Node child;
      child.label = label;
      nodes_.push_back(child);
      ranges.push_back({i, end, range.depth + 1});
      ++nodes_[node].children;
      i = end;
    }
  }
  for (uint32_t i = 0; i < nodes_[0].children; ++i) {
    root_[nodes_[nodes_[0].first_child + i].label] = nodes_[0].first_child + i;
  }
}

uint32_t ByteTrie::child(uint32_t node, uint8_t label) const {
  const auto first = nodes_.begin() + nodes_[node].first_child;
  const auto last = first + nodes_[node].children;
  const auto at = std::lower_bound(first, last, label, [](const Node& n, uint8_t l) { return n.label < l; });
  return at != last && at->label == label ? uint32_t(at - nodes_.begin()) : 0;
}

}  // namespace quire
