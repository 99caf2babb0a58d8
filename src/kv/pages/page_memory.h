#pragma once

#include <concepts>
#include <cstring>
#include <functional>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "kv/layout/kv_view.h"
#include "kv/pages/kv_moves.h"
#include "tensor/buffer.h"

namespace quire {

// The backend's memory, as far as pages need to know it.
struct KvMemory {
  using Allocate = std::function<Buffer(size_t bytes)>;
  using Copy = std::function<void(std::byte* to, const std::byte* from,
                                  size_t bytes)>;  // they may overlap
  // What KvMove::rotated_rows asks for.
  using Rotate = std::function<void(std::byte* keys, uint32_t layer, std::span<const uint32_t> back)>;

  template <std::convertible_to<Allocate> F>
  KvMemory(
      F allocate,
      Copy copy = [](std::byte* to, const std::byte* from, size_t n) { std::memmove(to, from, n); },
      Rotate rotate = {})
      : allocate(std::move(allocate)), copy(std::move(copy)), rotate(std::move(rotate)) {}

  Allocate allocate;
  Copy copy;
  Rotate rotate;  // empty: keys are never asked to
};

// The bytes of all pages of a cache: what it decides to move is moved here, and steps read and write it. One thread.
class PageMemory {
 public:
  // `beside`: of the groups of the host's side, where there is one.
  PageMemory(KvLayout layout, std::span<const uint32_t> pages_per_group, KvMemory memory,
             std::optional<KvMemory> beside = {});

  // In order. Allocates nothing.
  void make(const KvMoves& moves) const;
  // Where a move's bytes go and come from.
  struct Ends {
    std::byte* to;
    const std::byte* from;
  };
  Ends ends_of(const KvMove& move) const;
  // What a backend reads for one step; it points into `tables` and this memory, which must outlive it.
  std::vector<KvGroupView> view(const KvTables& tables) const;

  const KvLayout& layout() const { return layout_; }

 private:
  const KvMemory& memory_of(uint32_t group) const {
    return beside_ && layout_.groups[group].side == Side::host ? *beside_ : memory_;
  }

  const KvLayout layout_;
  KvMemory memory_;
  std::optional<KvMemory> beside_;
  std::vector<Buffer> pages_;  // by group
};

}  // namespace quire
