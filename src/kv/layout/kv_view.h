#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "kv/layout/kv_head_cells.h"
#include "kv/layout/kv_layout.h"

namespace quire {

inline constexpr uint32_t kNoPage = 0xffffffffu;  // behind the window: freed, and never read

// The page tables of all runs of a step as plain data, by layer group.
struct KvTables {
  struct Group {
    std::vector<uint32_t> page_ids;     // one table after the other
    std::vector<uint32_t> table_begin;  // by run: where its table starts in page_ids
    // By run: rows that it has more here than the run says, as pruning passed the group by. Empty: none has any.
    std::vector<uint32_t> row_shift;
    KvUnequalHeads<KvOwned> unequal;
    // Of states, beside page_ids: what a run begins with (kNoPage: nothing), and what it leaves, each with the row that it is the
    // state before, ascending.
    std::vector<uint32_t> state_rows;
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
  KvUnequalHeads<KvSeen> unequal = {};
  std::span<const uint32_t> state_rows = {};  // see KvTables

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
    const KvHeadCells* own = group->unequal.find(run, layer->first_cell + head);
    return own == nullptr ? row : row + uint32_t(own->shift);
  }
  // The index-th page of a head: its keys, then their values.
  std::byte* head_page(uint32_t run, uint32_t head, uint32_t index) const {
    const KvHeadCells* own = group->unequal.find(run, layer->first_cell + head);
    if (own == nullptr) return group->page(run, index) + layer->key_offset(head, 0);
    return group->pages + size_t(group->unequal.cells[own->begin + index]) * layer->head_bytes;
  }
  std::byte* key_row(uint32_t run, uint32_t head, uint32_t row) const {
    const uint32_t page_rows = layer->page_rows;
    return head_page(run, head, row / page_rows) + row % page_rows * layer->key_row_bytes;
  }
  // The state that a run finds; null: it is the sequence's first.
  const std::byte* state_before(uint32_t run, uint32_t head) const {
    const uint32_t page = group->page_ids[group->table_begin[run]];
    return page == kNoPage ? nullptr : group->page(run, 0) + layer->key_offset(head, 0);
  }
  // How many states a run leaves, the last of them as its last token left it; each is the state before a row. The last may
  // be where the first was.
  uint32_t states_left(uint32_t run) const {
    const size_t end =
        run + 1 < group->table_begin.size() ? group->table_begin[run + 1] : group->page_ids.size();
    return uint32_t(end) - group->table_begin[run] - 1;
  }
  uint32_t state_row(uint32_t run, uint32_t index) const {
    return group->state_rows[group->table_begin[run] + 1 + index];
  }
  std::byte* state_left(uint32_t run, uint32_t head, uint32_t index) const {
    return group->page(run, 1 + index) + layer->key_offset(head, 0);
  }
  std::byte* value_row(uint32_t run, uint32_t head, uint32_t row) const {
    const uint32_t page_rows = layer->page_rows;
    return head_page(run, head, row / page_rows) + page_rows * layer->key_row_bytes +
           row % page_rows * layer->value_row_bytes;
  }
};

}  // namespace quire
