#pragma once

#include <array>
#include <atomic>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <list>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <thread>
#include <vector>

#include "base/clock.h"
#include "kv/layout/kv_layout.h"
#include "kv/tiers/page_store.h"
#include "kv/tiers/store_breaker.h"
#include "kv/tiers/stored_page.h"
#include "kv/tiers/tier_slots.h"

namespace quire {

struct RemoteTierOptions {
  std::shared_ptr<PageStore> store = {};
  std::shared_ptr<const PageMac> mac = {};
  std::string identity = {};                 // whose pages they are, with their layout
  bool salted = true;                        // pages under a salt go there too
  size_t queue_bytes = size_t(256) << 20;    // of pages that wait to be sent; more are dropped
  uint32_t known_nodes = uint32_t(1) << 16;  // of which it is remembered that they are there
  StoreBreaker::Pauses pauses = {};
};

// Full pages in a store that other servers share. What is published here is sent there; what others have sent is asked for by name.
// Nothing that comes from there is believed: a page's name, its tokens and its tag are checked before anybody sees it, and what does not
// agree is a page that is not there. A store that does not answer is left alone for a while.
//
// What is there is known only to the store. What was seen there lately, or sent, is remembered, and may be wrong: others write, and a
// full store forgets.
//
// Two threads of its own, with a connection each, send and fetch; all else is for the engine's thread, which never waits for the
// store.
class RemoteTier {
 public:
  // Throws Error if a page is larger than a store takes.
  RemoteTier(const KvLayout& layout, RemoteTierOptions options);
  ~RemoteTier();  // what is still to be sent is not needed any more
  RemoteTier(const RemoteTier&) = delete;
  RemoteTier& operator=(const RemoteTier&) = delete;

  using Ticket = uint64_t;
  const std::string& place() const { return options_.store->place(); }
  // Whether pages under this salt may be there at all.
  bool takes(CacheSalt salt) const { return options_.salted || salt.is_none(); }

  // ---- there
  // A page that is to go there: which of its node (KvLayout::node_pages), and all tokens up to the node's end. Its bytes are to be
  // brought to `bytes`; null: it is there already, nobody takes it, or there is no room for it.
  struct Place {
    Ticket ticket = 0;
    std::byte* bytes = nullptr;
  };
  [[nodiscard]] Place send(uint32_t node_page, const SaltedTokens& prefix);
  void filled(Ticket sent);
  // Whether anybody would take pages now.
  bool is_writable() const { return writable_.load(std::memory_order_relaxed); }
  // The last that was sent, and whether it and all before it are there or will never be.
  Ticket last_sent() const { return last_sent_; }
  bool is_done(Ticket sent);
  // What tells another server that the beginning of a prompt is there; nothing: none of it is.
  std::optional<HandOver> hand_over(const SaltedTokens& prompt);

  // Asks whether the store answers, and waits for that, but not for longer. Then stats() know.
  void look(std::chrono::milliseconds most);

  // ---- here
  bool is_readable() const { return readable_.load(std::memory_order_relaxed); }
  // Asks which pages of a prompt are there, from a node on. `over`: what another server says of that; it is not asked again if it
  // is true of this prompt.
  Ticket ask(std::shared_ptr<const PromptKey> prompt, uint32_t first_node, std::optional<HandOver> over);
  // Asks for a page of a node.
  Ticket read(std::shared_ptr<const PromptKey> prompt, uint32_t node_page, uint32_t node);
  struct Arrival {
    Ticket ticket = 0;
    bool failed = false;  // the store did not answer
    PageFault fault = PageFault::none;
    std::shared_ptr<const std::byte[]> bytes =
        {};  // of a page; null: it was not there, or not what it should be
  };
  // What was answered since, in the order in which it was asked. What was asked about prompts is remembered by then.
  std::vector<Arrival> take_arrivals();
  // Until something arrives or was sent, but no longer than `most`.
  void wait(std::chrono::milliseconds most);

  // As far as it is remembered.
  std::vector<std::vector<bool>> pages_along(const SaltedTokens& tokens) const {
    return known_.pages_along(tokens);
  }
  void touch_along(const SaltedTokens& tokens) { known_.touch_along(tokens); }
  void tell(BlockListener* listener) { known_.tell(listener); }

  // How long it takes until so many bytes are here, after all that was asked for before.
  double seconds_to_read(size_t bytes);
  // A rate that looks bad is not measured any more, as nobody reads: each time that happens it is believed a little less.
  void doubt_rate();

  struct Stats {
    bool readable = false, writable = false;
    std::string problem;  // the last; empty: there was none
    uint64_t known_pages = 0;
    uint64_t queued_bytes = 0;  // that wait to be sent
    uint64_t sent_pages = 0, sent_bytes = 0;
    uint64_t there_pages = 0;    // that somebody had sent before
    uint64_t dropped_pages = 0;  // the queue was full, or nobody answered
    uint64_t refused_pages = 0;  // the store did not take them: it is full
    uint64_t hit_pages = 0, hit_bytes = 0;
    uint64_t missed_pages = 0;                      // that were asked for, and not there
    std::array<uint64_t, kPageFaults> faults = {};  // pages that were not what they should be
    uint64_t failures = 0;                          // times that the store did not answer
    double read_bytes_per_s = 0, round_trip_s = 0;
  };
  Stats stats();

  // Nothing is remembered any more, and what was asked for never arrives. Allocates nothing. REQUIRES: nobody is about to bring
  // bytes.
  void forget_all();

  void check_invariants() const { known_.check_invariants(); }

 private:
  using Bytes = std::unique_ptr<std::byte[]>;
  struct Sending {
    Ticket ticket = 0;
    uint32_t node_page = 0;
    PromptKey prefix = {};
    Bytes bytes = {};
    bool filled = false;
    bool forgotten = false;
    enum class End : uint8_t { none, sent, there, refused, dropped } end = End::none;
  };
  struct Asking {
    Ticket ticket = 0;
    std::shared_ptr<const PromptKey> prompt = {};
    bool for_page = false;
    uint32_t node_page = 0, node = 0;  // of a page; else the first node
    std::optional<HandOver> over = {};
    // What was answered.
    std::vector<std::vector<bool>> there = {};  // by node from the first on, then page
    Arrival arrival = {};
  };
  // A thread's way to the store.
  struct Link {
    std::unique_ptr<StoreConnection> connection = {};
    StoreBreaker breaker;
    PrefixTags tags;
  };

  size_t bytes_of(uint32_t node_page) const { return layout_.node_page_bytes(node_page); }
  size_t bytes_of(const Sending& page) const {
    return bytes_of(page.node_page) + page.prefix.tokens.size() * sizeof(TokenId);
  }
  void give_to_sender();
  void settle();
  void remember(const Asking& answered);
  void remember(uint32_t node_page, const SaltedTokens& prefix);
  void forget(uint32_t node_page, const SaltedTokens& prefix);
  void forget_what_was_known();
  void count(const Sending& done);

  // ---- of the two threads
  Link make_link() const;
  StoreConnection& connected(Link& link) const;
  PageAddress address_of(Link& link, const SaltedTokens& prompt, uint32_t node_page, uint32_t node) const;
  void broken(Link& link, std::atomic<bool>& works, const char* why);
  void work_as_sender();
  void send(Link& link, std::list<Sending>& pages);
  void put(Link& link, StoreConnection& store, std::list<Sending>& pages, std::string& refusal);
  bool take_spoiled(const std::string& name);
  void work_as_reader();
  void answer(Link& link, std::list<Asking>& asked);
  void answer_about(Link& link, StoreConnection& store, Asking& asking);
  void fetch(Link& link, StoreConnection& store, std::list<Asking>& asked);
  void deliver(std::list<Asking>& asked);  // the first of them
  void deliver_under_lock(std::list<Asking>& asked);
  void learn_rate(size_t bytes, double seconds);
  void learn_round_trip(double seconds);

  KvLayout layout_;
  RemoteTierOptions options_;
  TierSlots known_;
  PrefixTags tags_;  // the engine's thread's
  Ticket next_ticket_ = 1, last_sent_ = 0;
  std::vector<Arrival> arrivals_;
  std::list<Sending> waiting_;  // from the first on whose bytes are not there

  std::atomic<bool> readable_ = true, writable_ = true;
  std::mutex mutex_;
  std::condition_variable wake_sender_, wake_reader_, done_something_;
  // All below under the mutex.
  std::list<Sending> to_send_, sent_;
  std::list<Asking> asked_, answered_;
  Ticket done_up_to_ = 0;
  uint64_t queued_bytes_ = 0, asked_bytes_ = 0;
  std::set<std::string> spoiled_;  // names of values that were not what they should be: they are written over
  bool lost_touch_ = false;        // the store may be another than before
  bool stopping_ = false;
  double seconds_per_byte_, round_trip_;
  bool rate_is_measured_ = false, round_trip_is_measured_ = false;
  Stats stats_;
  std::thread sender_, reader_;  // last: they use all of the above
};

}  // namespace quire
