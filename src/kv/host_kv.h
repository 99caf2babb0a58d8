#pragma once

#include <span>
#include <utility>
#include <vector>

#include "kv/kv_cache.h"
#include "kv/pages/page_memory.h"

namespace quire {

// For tests and measurements: a cache whose pages are in the host's memory, where everybody can look at them.
class HostKv : public KvCache {
 public:
  HostKv(const KvLayout& layout, std::span<const uint32_t> pages_per_group,
         const KvCacheOptions& options = {})
      : KvCache(layout, pages_per_group, options),
        memory_(layout, pages_per_group, [](size_t bytes) { return Buffer(bytes); }) {}

  // What was decided is moved now.
  void settle_moves() {
    const KvMoves moves = take_moves();
    memory_.make(moves);
    moved(moves);
    const KvMoves aside = take_aside();
    memory_.make(aside);
    moved_aside(aside);
  }
  MakeMoves make_moves() {
    return [this](const KvMoves& moves) {
      settle_moves();
      memory_.make(moves);
    };
  }
  // The view points into `flat`, which must outlive it.
  std::vector<KvGroupView> view(std::span<const PageTable* const> tables, KvTables& flat) {
    settle_moves();
    flat = flatten(tables);
    return memory_.view(flat);
  }

 private:
  PageMemory memory_;
};

}  // namespace quire
