#pragma once

#include <cstdint>
#include <optional>
#include <string_view>
#include <utility>
#include <vector>

#include "base/id.h"

namespace quire {

// Which of a set of strings start here? Immutable once made.
class ByteTrie {
 public:
  ByteTrie() = default;
  // Of equal strings the first counts; empty ones are left out.
  explicit ByteTrie(std::vector<std::pair<std::string_view, TokenId>> entries);

  bool empty() const { return nodes_.size() <= 1; }

  // Calls found(length, id) for each string that `text` starts with, shortest first.
  template <class Found>
  void prefixes(std::string_view text, Found&& found) const {
    if (text.empty()) return;
    uint32_t node = root_[static_cast<unsigned char>(text[0])];
    for (size_t length = 1; node != 0; ++length) {
      if (nodes_[node].id != kNone) found(length, nodes_[node].id);
      if (length == text.size()) return;
      node = child(node, static_cast<unsigned char>(text[length]));
    }
  }

 private:
  static constexpr TokenId kNone = ~TokenId(0);
  struct Node {
    uint32_t first_child = 0;  // children are neighbours, ordered by label
    TokenId id = kNone;
    uint16_t children = 0;
    uint8_t label = 0;
  };

  uint32_t child(uint32_t node, uint8_t label) const;  // 0: none

  std::vector<Node> nodes_;  // nodes_[0] is the root, and "no node" as a child
  std::vector<uint32_t> root_ = std::vector<uint32_t>(256);
};

}  // namespace quire
