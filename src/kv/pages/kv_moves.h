#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <utility>
#include <vector>

namespace quire {

// Bytes that a cache wants moved: from one place in the pages of a layer group to another, or between them and host memory.
struct KvMove {
  uint32_t group = 0;
  size_t bytes = 0;
  uint64_t from = 0, to = 0;             // in the group's pages: page * page_bytes + offset
  const std::byte* host_from = nullptr;  // taken from here instead
  std::byte* host_to = nullptr;          // brought here instead
  uint64_t stored_as = 0;                // the disk tier's ticket of what it waits for; 0: nobody does
};

// In the order in which they must be made: a later one may overwrite what an earlier one has read.
struct KvMoves {
  std::vector<KvMove> list;
  std::vector<std::shared_ptr<const void>> held;  // host memory that must stay until they are made

  bool empty() const { return list.empty(); }
  void clear() {
    list.clear();
    held.clear();
  }
};

// Makes moves after all that was asked for before; they are made when it returns.
using MakeMoves = std::function<void(const KvMoves& moves)>;

}  // namespace quire
