#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "kv/kv_layout.h"

namespace quire {

inline constexpr uint32_t kNoPage = 0xffffffffu;  // behind the window: freed, and never read

// The pages of one layer group that a step reads and writes: flat arrays, one table after the other.
struct KvGroupView {
  const KvGroupLayout* layout = nullptr;
  std::byte* pages = nullptr;             // page p is at p * page_bytes
  std::span<const uint32_t> page_ids;     // the tables of all runs
  std::span<const uint32_t> table_begin;  // by run: where its table starts in page_ids

  std::byte* page(uint32_t run, uint32_t index) const {
    return pages + size_t(page_ids[table_begin[run] + index]) * layout->page_bytes;
  }
};

// One layer's rows in those pages.
struct KvView {
  const KvGroupView* group = nullptr;
  const KvLayerLayout* layer = nullptr;

  std::byte* key_row(uint32_t run, uint32_t head, uint32_t position) const {
    const uint32_t page_tokens = group->layout->page_tokens;
    return group->page(run, position / page_tokens) + layer->key_offset(head, position % page_tokens);
  }
  std::byte* value_row(uint32_t run, uint32_t head, uint32_t position) const {
    const uint32_t page_tokens = group->layout->page_tokens;
    return group->page(run, position / page_tokens) +
           layer->value_offset(head, position % page_tokens, page_tokens);
  }
};

}  // namespace quire
