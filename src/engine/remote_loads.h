#pragma once

#include <cstdint>
#include <deque>
#include <memory>

#include "engine/sequence.h"
#include "kv/kv_cache.h"
#include "kv/tiers/remote_tier.h"

namespace quire {

// Sequences that wait to hear what a shared store has of their prompts, and then for those pages, while others go on. They hold nothing:
// what comes is cached like any other page, and found when they start. Prompts are asked for at once, and their pages fetched one
// prompt after the other, in the order in which they came. Who has waited as long as computing would have taken waits no longer;
// a page that is missing, is not what it should be or finds no room ends the load, and the rest is computed. Engine thread only.
class RemoteLoads {
 public:
  // `patience`: how many times longer than computing them fetching tokens may take.
  RemoteLoads(KvCache& kv, RemoteTier& tier, double patience) : kv_(kv), tier_(tier), patience_(patience) {}

  // Whether the sequence waits, because fetching is predicted to be faster than computing. Asked once each time that it could start.
  // `compute_ms`: what a token of a prompt takes; 0: not known yet, and fetching is taken to be faster.
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
    std::shared_ptr<const PromptKey> prompt = {};
    RemoteTier::Ticket question = 0;              // what is there of it; 0: that was answered
    TierMatch match = {};                         // then; `bytes`: what is still to come
    uint64_t use = 0;                             // what was used before may make room for it
    size_t asked = 0, arrived = 0;                // pages
    std::deque<RemoteTier::Ticket> tickets = {};  // of those asked for and not here
    size_t bytes_on_the_way = 0;
    uint32_t brought_back = 0;  // pages
    Clock::time_point since = {}, latest = {};
    double compute_ms = 0;  // of a token
  };
  // Of the first tokens of a sequence: where what is to be asked for begins.
  uint32_t first_node_missing(uint32_t memory_tokens) const;
  // Of so many tokens: what would be fetched.
  size_t bytes_of(uint32_t tokens) const;
  bool is_worth_it(size_t bytes, uint32_t tokens, double compute_ms);
  void answered(Load& load, const RemoteTier::Arrival& arrival);
  void start_front();
  void ask_for_more(Load& load);
  bool take(Load& load, const RemoteTier::Arrival& arrival);
  void end(Load& load, StoreOutcome outcome);
  void end_front(StoreOutcome outcome);

  KvCache& kv_;
  RemoteTier& tier_;
  double patience_;
  std::deque<Load> line_;  // pages of the first are being fetched
};

}  // namespace quire
