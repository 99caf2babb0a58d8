#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace quire {

// Heads that were pruned to unequal numbers of rows (decision 24). A cell is the part of a page that holds one head's rows; cell
// c of a group is at c * head_bytes, for all are of one size. Of the pages that such a sequence had when it was pruned, a head
// that keeps more has cells of heads that keep less; in those that came later every head has its own.

// Where one head of a run has its rows.
struct KvHeadCells {
  uint32_t begin = 0;  // among the cells: one for each page_tokens rows of the head
  int32_t shift = 0;   // rows that the head has more than the run says: whole pages
};

inline constexpr uint32_t kEqualHeads = 0xffffffffu;  // all heads of a run have the same rows

// Of all runs of a step in one layer group, `List` being who holds the numbers. Empty unless some run has unequal heads.
template <template <class> class List>
struct KvUnequalHeads {
  List<uint32_t> heads_begin;  // by run: where its heads start in `heads`; or kEqualHeads
  List<KvHeadCells> heads;     // by head of the group
  List<uint32_t> cells;

  bool empty() const { return heads_begin.empty(); }
  // Of the group's head `head`; null: it has its own cell of every page, as all others.
  const KvHeadCells* find(uint32_t run, uint32_t head) const {
    if (empty() || heads_begin[run] == kEqualHeads) return nullptr;
    return &heads[heads_begin[run] + head];
  }
};

template <class T>
using KvOwned = std::vector<T>;
template <class T>
using KvSeen = std::span<const T>;

}  // namespace quire
