#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace quire {

// Where in a text do strings of a set begin? It reads the text once, from its end (an automaton of Aho and Corasick over
// the strings spelled backwards), so that many near-matches cost no more than none. Immutable once made.
class StartFinder {
 public:
  StartFinder() = default;
  // Of equal strings the first counts; empty ones are left out.
  explicit StartFinder(const std::vector<std::pair<std::string_view, uint32_t>>& entries);

  bool empty() const { return nodes_.size() <= 1; }

  // A place where at least one string begins.
  struct Start {
    size_t at = 0;
    uint32_t node = 0;
  };
  // All of them, in order.
  std::vector<Start> find(std::string_view text) const;

  // Calls found(length, id) for each string that begins there, the longest first, until it says true.
  template <class Found>
  void each(const Start& start, Found&& found) const {
    for (uint32_t node = start.node; node != 0; node = nodes_[node].shorter) {
      if (found(size_t(nodes_[node].depth), nodes_[node].id)) return;
    }
  }

 private:
  static constexpr uint32_t kNone = ~uint32_t(0);
  struct Node {
    uint32_t first_child = 0;  // children are neighbours, ordered by label
    uint32_t depth = 0;        // bytes from the root
    uint32_t id = kNone;
    uint32_t fallback = 0;  // of the longest shorter end that is a beginning too
    uint32_t shorter = 0;   // the next on the way of fallbacks that is a whole string; 0: none
    uint16_t children = 0;
    uint8_t label = 0;
  };
  void build(std::vector<std::pair<std::string, uint32_t>> backwards);
  uint32_t child(uint32_t node, uint8_t label) const;  // 0: none
  uint32_t next(uint32_t node, uint8_t label) const;

  std::vector<Node> nodes_;  // nodes_[0] is the root, and "no node" as a child; by depth
  std::vector<uint32_t> root_ = std::vector<uint32_t>(256);
};

}  // namespace quire
