#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <vector>

#include "kv/tiers/disk_tier.h"
#include "kv/tiers/tier_slots.h"
#include "tensor/buffer.h"

namespace quire {

// Full pages that left a device's memory, in the host's, until they are wanted again or all of it is taken: then those go that
// were used longest ago, to the disk if there is one. A page that went back to the device stays here too until its slot is
// needed, so that it can leave the device again without being moved.
//
// It knows where bytes are and touches none: they are brought and taken by moves that others make, and a slot that such a move
// reads or writes is given to nobody else before. Engine thread only.
class HostTier {
 public:
  using Allocate = std::function<Buffer(size_t bytes)>;  // of memory that the device's copies reach
  // Throws Error if not one page fits.
  HostTier(const KvLayout& layout, size_t bytes, const Allocate& allocate);
  HostTier(const HostTier&) = delete;
  HostTier& operator=(const HostTier&) = delete;

  // Pages whose slots will soon be needed go to this disk, which must outlive the tier's use and ends before it.
  void write_to(DiskTier& disk) { disk_ = &disk; }

  // A page in its slot, as it was when somebody saw it there: a slot may be given to another page later.
  struct Copy {
    uint32_t slot = 0;
    uint64_t stamp = 0;  // 0: there is none
    explicit operator bool() const { return stamp != 0; }
  };
  bool still_has(uint32_t group, const Copy& copy) const {
    return copy && groups_[group].states[copy.slot].stamp == copy.stamp;
  }
  std::optional<Copy> find(uint32_t node_page, const SaltedTokens& prefix) const;

  // Keeps a page: which of its node (KvLayout::node_pages), and all tokens up to the node's end. Of one that is to be brought
  // somebody brings the bytes and says `filled`.
  enum class Stored : uint8_t { to_be_brought, already_there, dropped };
  struct Place {
    Stored stored = Stored::dropped;
    Copy copy;
    std::byte* bytes = nullptr;
  };
  [[nodiscard]] Place store(uint32_t node_page, const SaltedTokens& prefix);
  void filled(uint32_t group, uint32_t slot);
  // A page is about to be taken from its slot; and it was, or nobody wants it any more.
  void begin_read(uint32_t group, uint32_t slot);
  enum class Read : uint8_t { done, given_up };
  void end_read(uint32_t group, uint32_t slot, Read read = Read::done);
  // Where a page's bytes are, or will be when the moves that bring it are made.
  const std::byte* bytes_of(uint32_t group, uint32_t slot) const {
    return groups_[group].memory.data() + size_t(slot) * slots_.page_bytes(group);
  }

  std::vector<std::vector<bool>> pages_along(const SaltedTokens& tokens) const {
    return slots_.pages_along(tokens);
  }
  // The same, with where they are.
  std::vector<std::vector<Copy>> copies_along(const SaltedTokens& tokens) const;
  void touch_along(const SaltedTokens& tokens) { slots_.touch_along(tokens); }
  void tell(BlockListener* listener) { slots_.tell(listener); }
  // A page that is here has left the device.
  void left(uint32_t group, const Copy& copy) {
    slots_.touch(group, copy.slot);
    ++stats_.kept_pages;
  }
  // Hands the disk the pages that will be the next to go: once for each step.
  void write_behind();

  struct Stats {
    uint64_t capacity_bytes = 0, used_bytes = 0, pages = 0;
    uint64_t stored_pages = 0, stored_bytes = 0;  // brought here
    uint64_t loaded_pages = 0, loaded_bytes = 0;  // taken back
    uint64_t kept_pages = 0;                      // left the device and were here already: nothing was moved
    uint64_t replaced_pages = 0;                  // made room for others
    uint64_t dropped_pages = 0;                   // found no slot, as all were being filled or read
    double bytes_per_s = 0;
  };
  Stats stats() const;
  uint64_t pages_of(uint32_t group) const { return slots_.uses(group).size(); }
  MemoryKind memory_kind() const { return groups_.front().memory.kind(); }

  // So many bytes took so long, one way or the other; 0: nobody knows how long.
  void learn_rate(size_t bytes, double seconds);
  double seconds_to_move(size_t bytes) const { return double(bytes) * seconds_per_byte_; }

  // For snapshots: its nodes' `pages` are slots.
  PrefixIndex& tree() { return slots_.tree(); }

  // Nothing is found any more. Allocates nothing. REQUIRES: no move to or from a slot is on its way.
  void forget_all();

  void check_invariants() const;

 private:
  struct SlotState {
    uint64_t stamp = 0;    // of its page; 0: it has none
    uint32_t readers = 0;  // moves that take it
    bool filling = false;  // it is being brought
    bool leaving = false;  // the disk reads it
    bool on_disk = false;  // the disk had it, or was given it
    bool is_busy() const { return filling || leaving || readers > 0; }
  };
  struct Group {
    Buffer memory;
    std::vector<SlotState> states;  // by slot
  };
  struct Leaving {
    DiskTier::Ticket ticket = 0;
    uint32_t group = 0, slot = 0;
  };
  bool make_free(uint32_t group);  // false: all are busy
  void forget(uint32_t group, uint32_t slot);
  void take_back_written();
  bool write(uint32_t group, uint32_t slot);  // false: the disk takes no more now

  TierSlots slots_;
  std::vector<Group> groups_;
  std::vector<Leaving> leaving_;
  DiskTier* disk_ = nullptr;
  uint64_t next_stamp_ = 1;
  Stats stats_;
  double seconds_per_byte_;
  bool rate_is_measured_ = false;
};

}  // namespace quire
