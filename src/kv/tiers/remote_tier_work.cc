#include <algorithm>
#include <exception>
#include <utility>

#include "base/check.h"
#include "base/error.h"
#include "kv/tiers/hand_over.h"
#include "kv/tiers/remote_tier.h"

// What the two threads of a remote tier do: one sends, one fetches.

namespace quire {
namespace {

constexpr size_t kSentAtOnce = 16;    // pages
constexpr size_t kAskedAtOnce = 256;  // names: who has none of so many has none of those after them
constexpr size_t kMostSpoiled = 4096;
constexpr size_t kSlack =
    4096;  // a value that is a little longer is read, and told apart from one that nobody should read

double seconds_since(Clock::time_point begin) {
  return milliseconds_between(begin, Clock::now()) / 1000;
}

}  // namespace

RemoteTier::Link RemoteTier::make_link() const {
  return {.breaker = StoreBreaker(options_.pauses),
          .tags = PrefixTags(*options_.mac, options_.identity, layout_.node_tokens)};
}

StoreConnection& RemoteTier::connected(Link& link) const {
  if (!link.connection) link.connection = options_.store->connect();
  return *link.connection;
}

void RemoteTier::broken(Link& link, std::atomic<bool>& works, const char* why) {
  link.connection.reset();
  link.breaker.failed(Clock::now());
  works.store(false, std::memory_order_relaxed);
  const std::lock_guard lock(mutex_);
  ++stats_.failures;
  stats_.problem = why;
  lost_touch_ = true;
}

PageAddress RemoteTier::address_of(Link& link, const SaltedTokens& prompt, uint32_t node_page,
                                   uint32_t node) const {
  const size_t before = size_t(node) * layout_.node_tokens;
  return {.space = link.tags.space(),
          .prefix = link.tags.of(prompt.tokens, prompt.salt, node + 1),
          .node_page = node_page,
          .tokens = prompt.tokens.subspan(before, layout_.node_tokens),
          .bytes = bytes_of(node_page)};
}

// ---- there -------------------------------------------------------------------------------------------------------

void RemoteTier::work_as_sender() {
  Link link = make_link();
  std::unique_lock lock(mutex_);
  while (true) {
    const auto is_wanted = [&] { return stopping_ || !to_send_.empty(); };
    if (link.breaker.is_open()) {
      wake_sender_.wait_until(lock, link.breaker.again(), is_wanted);
    } else {
      wake_sender_.wait(lock, is_wanted);
    }
    if (stopping_) return;
    std::list<Sending> now;  // a page moves from list to list, which takes no memory
    while (!to_send_.empty() && now.size() < kSentAtOnce) now.splice(now.end(), to_send_, to_send_.begin());
    lock.unlock();
    send(link, now);
    lock.lock();
    for (const Sending& page : now) queued_bytes_ -= bytes_of(page);
    if (!now.empty()) done_up_to_ = std::max(done_up_to_, now.back().ticket);
    sent_.splice(sent_.end(), now);
    done_something_.notify_all();
  }
}

void RemoteTier::send(Link& link, std::list<Sending>& pages) {
  try {
    for (Sending& page : pages) page.end = Sending::End::dropped;
    if (!link.breaker.may_try(Clock::now())) return;
    StoreConnection& store = connected(link);
    std::string refusal;
    if (pages.empty()) {
      store.has({});
    } else {
      put(link, store, pages, refusal);
    }
    if (refusal.empty()) {
      pages.empty() ? link.breaker.half_close() : link.breaker.worked();
      writable_.store(true, std::memory_order_relaxed);
      return;
    }
    // It is full: left alone for a while, like one that does not answer.
    link.breaker.failed(Clock::now());
    writable_.store(false, std::memory_order_relaxed);
    const std::lock_guard lock(mutex_);
    stats_.problem = refusal;
  } catch (const std::exception& error) {
    broken(link, writable_, error.what());
  }
}

void RemoteTier::put(Link& link, StoreConnection& store, std::list<Sending>& pages, std::string& refusal) {
  struct Value {
    Sending* page;
    std::string name;
    std::vector<std::byte> head;
    StoreTag tag;
  };
  std::vector<Value> values;
  std::vector<std::string> names;
  for (Sending& page : pages) {
    const SaltedTokens prefix(page.prefix.tokens, page.prefix.salt);
    const auto node = uint32_t(prefix.size() / layout_.node_tokens - 1);
    const PageAddress address = address_of(link, prefix, page.node_page, node);
    names.push_back(stored_name(address));
    values.push_back({.page = &page, .name = names.back(), .head = stored_head(address), .tag = {}});
  }
  const std::vector<bool> there = store.has(names);
  std::vector<Value*> missing;
  for (size_t i = 0; i < values.size(); ++i) {
    if (there[i] && !take_spoiled(values[i].name)) {
      values[i].page->end = Sending::End::there;
    } else {
      missing.push_back(&values[i]);
    }
  }
  std::vector<StoreConnection::Put> puts;
  for (Value* value : missing) {
    const std::span<const std::byte> bytes(value->page->bytes.get(), bytes_of(value->page->node_page));
    value->tag = stored_tag(value->head, bytes, *options_.mac);
    puts.push_back({value->name, {value->head, bytes, value->tag}});
  }
  if (puts.empty()) return;
  const std::vector<bool> took = store.put(puts, refusal);
  for (size_t i = 0; i < missing.size(); ++i)
    missing[i]->page->end = took[i] ? Sending::End::sent : Sending::End::refused;
}

bool RemoteTier::take_spoiled(const std::string& name) {
  const std::lock_guard lock(mutex_);
  return spoiled_.erase(name) > 0;
}

// ---- here --------------------------------------------------------------------------------------------------------

void RemoteTier::work_as_reader() {
  Link link = make_link();
  std::unique_lock lock(mutex_);
  while (true) {
    const auto is_wanted = [&] { return stopping_ || !asked_.empty(); };
    if (link.breaker.is_open()) {
      wake_reader_.wait_until(lock, link.breaker.again(), is_wanted);
    } else {
      wake_reader_.wait(lock, is_wanted);
    }
    if (stopping_) return;
    std::list<Asking> now;
    now.swap(asked_);
    lock.unlock();
    try {
      answer(link, now);
    } catch (const std::exception& error) {
      broken(link, readable_, error.what());
    }
    while (!now.empty()) {  // those that were not answered
      now.front().arrival.failed = true;
      deliver(now);
    }
    lock.lock();
  }
}

void RemoteTier::answer(Link& link, std::list<Asking>& asked) {
  if (!link.breaker.may_try(Clock::now())) return;
  StoreConnection& store = connected(link);
  if (link.breaker.is_open()) store.has({});
  link.breaker.worked();
  readable_.store(true, std::memory_order_relaxed);
  while (!asked.empty()) {
    if (asked.front().for_page) {
      fetch(link, store, asked);
    } else {
      answer_about(link, store, asked.front());
      deliver(asked);
    }
  }
}

void RemoteTier::answer_about(Link& link, StoreConnection& store, Asking& asking) {
  const SaltedTokens prompt(asking.prompt->tokens, asking.prompt->salt);
  if (prompt.size() == 0) {  // only whether it answers
    store.has({});
    return;
  }
  const auto nodes =
      uint32_t((prompt.size() - 1) / layout_.node_tokens);  // the last token is always computed
  const auto pages = uint32_t(layout_.node_pages.size());
  uint32_t node = asking.node;
  // States are kept at some nodes only, and nobody said at which.
  if (asking.over && !layout_.has_states()) {
    const uint32_t told =
        nodes_told_of(*asking.over, prompt.tokens, prompt.salt, layout_.node_tokens, link.tags);
    for (; node < std::min(told, nodes); ++node) asking.there.emplace_back(pages, true);
  }
  while (node < nodes) {
    std::vector<std::string> names;
    const uint32_t first = node;
    for (; node < nodes && names.size() < kAskedAtOnce; ++node) {
      for (uint32_t n = 0; n < pages; ++n) names.push_back(stored_name(address_of(link, prompt, n, node)));
    }
    const Clock::time_point begin = Clock::now();
    const std::vector<bool> has = store.has(names);
    {
      const std::lock_guard lock(mutex_);
      learn_round_trip(seconds_since(begin));
    }
    for (uint32_t i = 0; i < node - first; ++i)
      asking.there.emplace_back(has.begin() + ptrdiff_t(i * pages), has.begin() + ptrdiff_t((i + 1) * pages));
    if (std::ranges::find(has, true) == has.end()) return;
  }
}

void RemoteTier::fetch(Link& link, StoreConnection& store, std::list<Asking>& asked) {
  std::vector<PageAddress> addresses;
  std::vector<std::string> names;
  for (const Asking& asking : asked) {
    if (!asking.for_page) break;
    const SaltedTokens prompt(asking.prompt->tokens, asking.prompt->salt);
    addresses.push_back(address_of(link, prompt, asking.node_page, asking.node));
    names.push_back(stored_name(addresses.back()));
  }
  Clock::time_point begin = Clock::now();
  store.ask(names);
  for (size_t i = 0; i < addresses.size(); ++i) {
    Arrival& arrival = asked.front().arrival;
    const PageAddress& address = addresses[i];
    const std::optional<StoreValue> value = store.take(stored_size(address) + kSlack);
    if (value) {
      std::span<const std::byte> page;
      arrival.fault = read_stored_page({value->bytes.get(), value->size}, address, *options_.mac, page);
      if (arrival.fault == PageFault::none)
        arrival.bytes = std::shared_ptr<const std::byte[]>(value->bytes, page.data());
    }
    const std::lock_guard lock(mutex_);
    if (!value) {
      ++stats_.missed_pages;
    } else if (arrival.bytes) {
      ++stats_.hit_pages;
      stats_.hit_bytes += address.bytes;
      learn_rate(address.bytes, seconds_since(begin));
    } else {
      ++stats_.missed_pages;
      ++stats_.faults[size_t(arrival.fault)];
      if (spoiled_.size() < kMostSpoiled) spoiled_.insert(names[i]);
    }
    begin = Clock::now();
    deliver_under_lock(asked);
  }
}

void RemoteTier::deliver(std::list<Asking>& asked) {
  const std::lock_guard lock(mutex_);
  deliver_under_lock(asked);
}

void RemoteTier::deliver_under_lock(std::list<Asking>& asked) {
  Asking& asking = asked.front();
  asking.arrival.ticket = asking.ticket;
  if (asking.for_page) asked_bytes_ -= bytes_of(asking.node_page);
  answered_.splice(answered_.end(), asked, asked.begin());
  done_something_.notify_all();
}

}  // namespace quire
