#include "kv/pages/page_memory.h"

#include "base/check.h"

namespace quire {

PageMemory::PageMemory(KvLayout layout, std::span<const uint32_t> pages_per_group, KvMemory memory,
                       std::optional<KvMemory> beside)
    : layout_(std::move(layout)), memory_(std::move(memory)), beside_(std::move(beside)) {
  CHECK(pages_per_group.size() == layout_.groups.size());
  for (uint32_t g = 0; g < layout_.groups.size(); ++g)
    pages_.push_back(memory_of(g).allocate(layout_.groups[g].page_bytes * pages_per_group[g]));
}

void PageMemory::make(const KvMoves& moves) const {
  for (const KvMove& move : moves.list) {
    const Ends ends = ends_of(move);
    if (move.rotated_rows > 0) {
      memory_of(move.group)
          .rotate(ends.to, move.layer, std::span(moves.back).subspan(move.back_at, move.rotated_rows));
      continue;
    }
    memory_of(move.group).copy(ends.to, ends.from, move.bytes);
  }
}

PageMemory::Ends PageMemory::ends_of(const KvMove& move) const {
  std::byte* pages = pages_[move.group].data();
  return {.to = move.host_to != nullptr ? move.host_to : pages + move.to,
          .from = move.host_from != nullptr ? move.host_from : pages + move.from};
}

std::vector<KvGroupView> PageMemory::view(const KvTables& tables) const {
  std::vector<KvGroupView> views;
  for (size_t g = 0; g < pages_.size(); ++g) {
    const KvTables::Group& group = tables.groups[g];
    const auto count = uint32_t(pages_[g].size() / layout_.groups[g].page_bytes);
    views.push_back({&layout_.groups[g],
                     pages_[g].data(),
                     count,
                     group.page_ids,
                     group.table_begin,
                     group.row_shift,
                     {group.unequal.heads_begin, group.unequal.heads, group.unequal.cells},
                     group.state_rows});
  }
  return views;
}

}  // namespace quire
