#pragma once

#include <cstdint>
#include <deque>

#include "engine/sequence.h"
#include "kv/kv_cache.h"
#include "kv/tiers/host_tier.h"

namespace quire {

// Sequences that wait until pages of their prompts are back from the host's memory, while others go on. They hold nothing: what
// comes back is cached like any other page, and found when they start. Several are brought at once, as long as what one has
// brought does not have to go for the next. Engine thread only.
class HostLoads {
 public:
  // `patience`: how many times longer than computing them bringing tokens may take.
  HostLoads(KvCache& kv, HostTier& tier, double patience) : kv_(kv), tier_(tier), patience_(patience) {}

  // Whether the sequence waits, because bringing is predicted to be faster than computing. Asked once each time that it could
  // start. `compute_ms`: what a token of a prompt takes; 0: not known yet, and bringing is taken to be faster.
  bool begin(Sequence& sequence, double compute_ms);
  // It has gone, wherever it was.
  void forget(const Sequence& sequence);
  // Nobody waits any more. Allocates nothing.
  void forget_all();
  // Lets those start whose pages are here: once for each step, before it is planned.
  void advance();
  // Asks for pages: after it is planned, so that those who run find room first.
  void ask_for_more();
  bool any() const { return !line_.empty(); }

 private:
  struct Load {
    Sequence* sequence = nullptr;
    TierMatch match;      // as it was when it began
    size_t asked = 0;     // pages
    uint64_t ticket = 0;  // when the last of them is here
    Clock::time_point since;

    bool is_asked() const { return asked == match.pages.size(); }
  };
  // Asks for the next pages of a load; false: no more may be on their way now.
  bool ask(Load& load);
  void end_done();
  static void end(const Load& load);

  KvCache& kv_;
  HostTier& tier_;
  double patience_;
  std::deque<Load> line_;  // in the order in which they came
};

}  // namespace quire
