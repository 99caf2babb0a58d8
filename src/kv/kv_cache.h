#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <vector>

#include "kv/kv_layout.h"
#include "kv/kv_view.h"
#include "kv/page_pool.h"
#include "kv/page_table.h"

namespace quire {

// How many pages each layer group needs to hold `sequences` sequences of `tokens` tokens that are computed in
// chunks of at most `chunk`: a window group keeps only what its window and one chunk span.
std::vector<uint32_t> pages_for(const KvLayout& layout, uint32_t tokens, uint32_t chunk, uint32_t sequences);

size_t kv_bytes(const KvLayout& layout, std::span<const uint32_t> pages_per_group);

// The keys and values of all sequences, in pages. Owned by the engine; engine thread only.
class KvCache {
 public:
  using Allocate = std::function<Buffer(size_t bytes)>;  // the backend's memory

  KvCache(KvLayout layout, std::span<const uint32_t> pages_per_group, const Allocate& allocate);

  const KvLayout& layout() const { return layout_; }
  PageTable make_table() const { return PageTable(uint32_t(layout_.groups.size())); }

  // Makes room for positions below `tokens`. All or nothing: false leaves the table as it was.
  [[nodiscard]] bool reserve(PageTable& table, uint32_t tokens);

  // Frees the pages that no token from position `next` on can see any more.
  void release_behind_window(PageTable& table, uint32_t next);

  struct Stats {
    uint32_t pages_in_use = 0;
    uint32_t peak_pages = 0;
    size_t bytes_in_use = 0;
    size_t peak_bytes = 0;
    size_t capacity_bytes = 0;
  };
  Stats stats() const;

  // What a backend reads for one step over `tables` (one per run). The view points into `flat`, which must
  // outlive it.
  struct FlatTables {
    std::vector<std::vector<uint32_t>> page_ids;     // by group
    std::vector<std::vector<uint32_t>> table_begin;  // by group
  };
  std::vector<KvGroupView> view(std::span<const PageTable* const> tables, FlatTables& flat) const;

  void check_invariants() const;

 private:
  uint32_t page_tokens() const { return layout_.groups.front().page_tokens; }

  KvLayout layout_;
  std::vector<std::unique_ptr<PagePool>> pools_;  // by group
};

}  // namespace quire
