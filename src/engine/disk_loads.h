#pragma once

#include <cstdint>
#include <deque>

#include "engine/sequence.h"
#include "kv/kv_cache.h"
#include "kv/tiers/disk_tier.h"

namespace quire {

// Sequences that wait until pages of their prompts are back from the disk, while others go on. They hold nothing: what
// comes back is cached like any other page, and found when they start. One is loaded at a time, in the order in which they
// came; a page that fails, or finds no room, ends the load, and the rest is computed. Engine thread only.
class DiskLoads {
 public:
  // `patience`: how many times longer than computing them reading tokens may take.
  DiskLoads(KvCache& kv, DiskTier& tier, double patience) : kv_(kv), tier_(tier), patience_(patience) {}

  // Whether the sequence waits, because reading is predicted to be faster than computing. Asked once each time that it could
  // start. `compute_ms`: what a token of a prompt takes; 0: not known yet, and reading is taken to be faster.
  bool begin(Sequence& sequence, double compute_ms);
  // It has gone, wherever it was.
  void forget(const Sequence& sequence);
  // Nobody waits any more. Allocates nothing.
  void forget_all();
  // Takes what has arrived and asks for more: once for each step.
  void advance();
  bool any() const { return !line_.empty(); }
  // Nothing else is to be done: waits until something arrives, but not so long that a new request would notice.
  void wait() { tier_.wait(std::chrono::milliseconds(2)); }

 private:
  struct Load {
    Sequence* sequence = nullptr;
    TierMatch match;                       // as it was when it began; `bytes`: what is still to come
    uint64_t use = 0;                      // what was used before may make room for it
    size_t asked = 0, arrived = 0;         // pages
    std::deque<DiskTier::Ticket> tickets;  // of those asked for and not here
    size_t bytes_on_the_way = 0;
    uint32_t brought_back = 0;  // pages
    Clock::time_point since;
  };
  bool start_front();  // false: there is nothing to read
  void ask_for_more(Load& load);
  bool take(Load& load, DiskTier::Arrival& arrival);
  void end_front();
  SaltedTokens prefix_of(const Load& load, const TierMatch::Page& page) const;

  KvCache& kv_;
  DiskTier& tier_;
  double patience_;
  std::deque<Load> line_;  // the first is being loaded
};

}  // namespace quire
