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
  uint64_t sent_as = 0;                  // the remote tier's, in the same way
  static constexpr uint32_t kNoSlot = UINT32_MAX;
  uint32_t host_slot = kNoSlot;  // the host tier's, that is filled or read
  uint64_t ticket = 0;           // of one that is made aside: each has the next
  // A move with arithmetic: so many key rows of a head of this layer, which lie one after the other and stay where they are, become
  // those of tokens that stand so many positions before (KvMoves::back, from `back_at` on). 0: bytes alone.
  uint32_t rotated_rows = 0, layer = 0;
  size_t back_at = 0;
};

// In the order in which they must be made: a later one may overwrite what an earlier one has read.
//
// A cache has two lists: what must be made before anything else is computed; and what is made aside, after the former and beside
// what is computed next, which touches neither where it comes from nor where it goes.
struct KvMoves {
  std::vector<KvMove> list;
  std::vector<std::shared_ptr<const void>> held;  // host memory that must stay until they are made
  std::vector<uint32_t> back;                     // see KvMove::rotated_rows
  uint64_t after = 0;  // they overwrite what moves aside up to this ticket have to read first

  bool empty() const { return list.empty(); }
  void clear() {
    list.clear();
    held.clear();
    back.clear();
    after = 0;
  }
};

// Makes moves after all that was asked for before; they are made when it returns.
using MakeMoves = std::function<void(const KvMoves& moves)>;

}  // namespace quire
