#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "kv/layout/kv_layout.h"

namespace quire {

inline constexpr uint32_t kNoPage = 0xffffffffu;      // behind the window: freed, and never read
inline constexpr uint32_t kEqualHeads = 0xffffffffu;  // all heads of a run have the same rows

// Where one KV head of a run has its rows, if the heads were pruned to unequal numbers of them. A cell is the part of a page
// that holds one head's rows; cell c is at c * head_bytes, for all are of one size.
struct KvHeadCells {
  uint32_t begin = 0;  // in KvGroupView::cells: one for each page_tokens rows of the head
  int32_t shift = 0;   // rows that the head has more than the run says: whole pages
};

// The page tables of all runs of a step as plain data, by layer group.
struct KvTables {
  struct Group {
    std::vector<uint32_t> page_ids;     // one table after the other
    std::vector<uint32_t> table_begin;  // by run: where its table starts in page_ids
    // By run: rows that it has more here than the run says, as pruning passed the group by. Empty: none has any.
    std::vector<uint32_t> row_shift;
    // Empty where all heads of all tables have the same rows.
    std::vector<uint32_t> heads_begin;
    std::vector<KvHeadCells> heads;
    std::vector<uint32_t> cells;
  };
  std::vector<Group> groups;
};

// The pages of one layer group that a step reads and writes: flat arrays, one table after the other.
struct KvGroupView {
  const KvGroupLayout* layout = nullptr;
  std::byte* pages = nullptr;  // page p is at p * page_bytes
  uint32_t page_count = 0;
  std::span<const uint32_t> page_ids;        // the tables of all runs
  std::span<const uint32_t> table_begin;     // by run: where its table starts in page_ids
  std::span<const uint32_t> row_shift = {};  // by run: rows that it has more than the run says; empty: none
  // Empty unless the heads of some run have unequal rows.
  std::span<const uint32_t> heads_begin = {};  // by run: where its heads start in `heads`; or kEqualHeads
  std::span<const KvHeadCells> heads = {};     // by head of the group
  std::span<const uint32_t> cells = {};

  // What the group calls a row of the run (TokenRun).
  uint32_t group_row(uint32_t run, uint32_t row) const {
    return row_shift.empty() ? row : row + row_shift[run];
  }
  std::byte* page(uint32_t run, uint32_t index) const {
    return pages + size_t(page_ids[table_begin[run] + index]) * layout->page_bytes;
  }
};

// The rows of one stream of one layer in those pages.
struct KvView {
  const KvGroupView* group = nullptr;
  const KvLayerLayout* layer = nullptr;

  // What a head calls a row of the run (TokenRun), and how it is asked for below.
  uint32_t head_row(uint32_t run, uint32_t head, uint32_t row) const {
    row = group->group_row(run, row);
    const KvHeadCells* own = own_cells(run, head);
    return own == nullptr ? row : row + uint32_t(own->shift);
  }
  // The index-th page of a head: its keys, then their values.
  std::byte* head_page(uint32_t run, uint32_t head, uint32_t index) const {
    const KvHeadCells* own = own_cells(run, head);
    if (own == nullptr) return group->page(run, index) + layer->key_offset(head, 0);
    return group->pages + size_t(group->cells[own->begin + index]) * layer->head_bytes;
  }
  std::byte* key_row(uint32_t run, uint32_t head, uint32_t row) const {
    const uint32_t page_rows = layer->page_rows;
    return head_page(run, head, row / page_rows) + row % page_rows * layer->key_row_bytes;
  }
  std::byte* value_row(uint32_t run, uint32_t head, uint32_t row) const {
    const uint32_t page_rows = layer->page_rows;
    return head_page(run, head, row / page_rows) + page_rows * layer->key_row_bytes +
           row % page_rows * layer->value_row_bytes;
  }

 private:
  const KvHeadCells* own_cells(uint32_t run, uint32_t head) const {
    if (group->heads_begin.empty() || group->heads_begin[run] == kEqualHeads) return nullptr;
    return &group->heads[group->heads_begin[run] + layer->first_cell + head];
  }
};

}  // namespace quire
