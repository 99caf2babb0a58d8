#include "text/start_finder.h"

#include <algorithm>

namespace quire {

StartFinder::StartFinder(const std::vector<std::pair<std::string_view, uint32_t>>& entries) {
  std::vector<std::pair<std::string, uint32_t>> backwards;
  for (const auto& [text, id] : entries) {
    if (!text.empty()) backwards.emplace_back(std::string(text.rbegin(), text.rend()), id);
  }
  std::stable_sort(backwards.begin(), backwards.end(),
                   [](const auto& a, const auto& b) { return a.first < b.first; });
  build(std::move(backwards));
  for (uint32_t i = 0; i < nodes_[0].children; ++i)
    root_[nodes_[nodes_[0].first_child + i].label] = nodes_[0].first_child + i;
  // A node's parent and its fallback are less deep, and so come before it.
  for (uint32_t parent = 1; parent < nodes_.size(); ++parent) {
    for (uint32_t i = 0; i < nodes_[parent].children; ++i) {
      Node& node = nodes_[nodes_[parent].first_child + i];
      node.fallback = next(nodes_[parent].fallback, node.label);
      const Node& fallback = nodes_[node.fallback];
      node.shorter = fallback.id != kNone ? node.fallback : fallback.shorter;
    }
  }
}

void StartFinder::build(std::vector<std::pair<std::string, uint32_t>> backwards) {
  struct Range {
    size_t begin, end;  // strings that share the bytes up to a node
  };
  std::vector<Range> ranges{{0, backwards.size()}};  // one per node, in the order of nodes_
  nodes_.emplace_back();
  for (size_t node = 0; node < nodes_.size(); ++node) {
    const Range range = ranges[node];
    const size_t depth = nodes_[node].depth;
    size_t i = range.begin;
    for (; i < range.end && backwards[i].first.size() == depth; ++i) {
      if (nodes_[node].id == kNone) nodes_[node].id = backwards[i].second;
    }
    nodes_[node].first_child = uint32_t(nodes_.size());
    while (i < range.end) {
      Node child;
      child.label = static_cast<uint8_t>(backwards[i].first[depth]);
      child.depth = uint32_t(depth + 1);
      size_t end = i + 1;
      while (end < range.end && static_cast<uint8_t>(backwards[end].first[depth]) == child.label) ++end;
      nodes_.push_back(child);
      ranges.push_back({i, end});
      ++nodes_[node].children;
      i = end;
    }
  }
}

uint32_t StartFinder::child(uint32_t node, uint8_t label) const {
  const auto first = nodes_.begin() + nodes_[node].first_child;
  const auto last = first + nodes_[node].children;
  const auto at = std::lower_bound(first, last, label, [](const Node& n, uint8_t l) { return n.label < l; });
  return at != last && at->label == label ? uint32_t(at - nodes_.begin()) : 0;
}

uint32_t StartFinder::next(uint32_t node, uint8_t label) const {
  for (; node != 0; node = nodes_[node].fallback) {
    if (const uint32_t found = child(node, label)) return found;
  }
  return root_[label];
}

std::vector<StartFinder::Start> StartFinder::find(std::string_view text) const {
  std::vector<Start> starts;
  if (empty()) return starts;
  uint32_t node = 0;
  for (size_t at = text.size(); at-- > 0;) {
    node = next(node, static_cast<uint8_t>(text[at]));
    const uint32_t longest = nodes_[node].id != kNone ? node : nodes_[node].shorter;
    if (longest != 0) starts.push_back({at, longest});
  }
  std::reverse(starts.begin(), starts.end());
  return starts;
}

}  // namespace quire
