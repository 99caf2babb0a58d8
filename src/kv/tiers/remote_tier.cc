#include "kv/tiers/remote_tier.h"

#include <algorithm>
#include <utility>

#include "base/check.h"
#include "base/error.h"

// What the engine's thread does with a store: says what is to go there, and asks what is there.

namespace quire {
namespace {

constexpr double kFirstStoreGuess = 1 / 500e6;       // seconds per byte: any store that is worth it
constexpr double kFirstRoundTrip = 0.0005;           // seconds
constexpr double kNewestOfStore = 0.1;               // of an average: the weight of what was just measured
constexpr size_t kLargestValue = size_t(500) << 20;  // Redis takes 512 MiB

}  // namespace

RemoteTier::RemoteTier(const KvLayout& layout, RemoteTierOptions options)
    : layout_(layout),
      options_(std::move(options)),
      known_(layout, uint64_t(options_.known_nodes) * TierSlots::node_bytes(layout), BlockPlace::remote),
      tags_(*options_.mac, options_.identity, layout.node_tokens),
      seconds_per_byte_(kFirstStoreGuess),
      round_trip_(kFirstRoundTrip) {
  for (const KvGroupLayout& group : layout_.groups) {
    if (group.page_bytes > kLargestValue)
      throw Error("a page of {} bytes is more than a store takes as one value ({} bytes)", group.page_bytes,
                  kLargestValue);
  }
  sender_ = std::thread([this] { work_as_sender(); });
  reader_ = std::thread([this] { work_as_reader(); });
}

RemoteTier::~RemoteTier() {
  {
    const std::lock_guard lock(mutex_);
    stopping_ = true;
  }
  wake_sender_.notify_one();
  wake_reader_.notify_one();
  sender_.join();
  reader_.join();
}

// ---- there -------------------------------------------------------------------------------------------------------

RemoteTier::Place RemoteTier::send(uint32_t node_page, const SaltedTokens& prefix) {
  settle();
  if (!takes(prefix.salt) || !is_writable()) return {};
  if (const auto slot = known_.find(node_page, prefix)) {
    known_.touch(known_.group_of(node_page), *slot);
    return {};
  }
  Sending page{.ticket = next_ticket_, .node_page = node_page};
  const size_t bytes = bytes_of(node_page) + prefix.size() * sizeof(TokenId);
  {
    const std::lock_guard lock(mutex_);
    // One that is larger than the queue waits alone.
    if (queued_bytes_ > 0 && queued_bytes_ + bytes > options_.queue_bytes) {
      ++stats_.dropped_pages;
      return {};
    }
    queued_bytes_ += bytes;
  }
  page.prefix = {{prefix.tokens.begin(), prefix.tokens.end()}, prefix.salt};
  page.bytes = std::make_unique_for_overwrite<std::byte[]>(bytes_of(node_page));
  last_sent_ = next_ticket_++;
  remember(node_page, prefix);
  waiting_.push_back(std::move(page));
  return {.ticket = last_sent_, .bytes = waiting_.back().bytes.get()};
}

void RemoteTier::filled(Ticket sent) {
  const auto found = std::ranges::find(waiting_, sent, &Sending::ticket);
  CHECK(found != waiting_.end());
  found->filled = true;
  give_to_sender();
}

void RemoteTier::give_to_sender() {
  const auto first = std::ranges::find(waiting_, false, &Sending::filled);
  if (first == waiting_.begin()) return;
  {
    const std::lock_guard lock(mutex_);
    to_send_.splice(to_send_.end(), waiting_, waiting_.begin(), first);
  }
  wake_sender_.notify_one();
}

bool RemoteTier::is_done(Ticket sent) {
  settle();
  const std::lock_guard lock(mutex_);
  return done_up_to_ >= sent;
}

std::optional<HandOver> RemoteTier::hand_over(const SaltedTokens& prompt) {
  settle();
  const std::vector<std::vector<bool>> pages = known_.pages_along(prompt);
  const auto is_there = [&](const std::vector<bool>& has) {
    for (uint32_t n = 0; n < has.size(); ++n) {
      if (!has[n] && layout_.groups[layout_.node_pages[n].group].keeps_all()) return false;
    }
    return true;
  };
  const size_t nodes = size_t(std::ranges::find_if_not(pages, is_there) - pages.begin());
  if (nodes == 0) return std::nullopt;
  return HandOver{.tokens = uint32_t(nodes) * layout_.node_tokens,
                  .prefix = tags_.of(prompt.tokens, prompt.salt, nodes)};
}

// ---- here --------------------------------------------------------------------------------------------------------

RemoteTier::Ticket RemoteTier::ask(std::shared_ptr<const PromptKey> prompt, uint32_t first_node,
                                   std::optional<HandOver> over) {
  const Ticket ticket = next_ticket_++;
  {
    const std::lock_guard lock(mutex_);
    asked_.push_back({.ticket = ticket, .prompt = std::move(prompt), .node = first_node, .over = over});
  }
  wake_reader_.notify_one();
  return ticket;
}

RemoteTier::Ticket RemoteTier::read(std::shared_ptr<const PromptKey> prompt, uint32_t node_page,
                                    uint32_t node) {
  const Ticket ticket = next_ticket_++;
  {
    const std::lock_guard lock(mutex_);
    asked_.push_back({.ticket = ticket,
                      .prompt = std::move(prompt),
                      .for_page = true,
                      .node_page = node_page,
                      .node = node});
    asked_bytes_ += bytes_of(node_page);
  }
  wake_reader_.notify_one();
  return ticket;
}

void RemoteTier::look(std::chrono::milliseconds most) {
  const Clock::time_point until = Clock::now() + most;
  const Ticket ticket = ask(std::make_shared<const PromptKey>(), 0, std::nullopt);
  while (Clock::now() < until) {
    for (const Arrival& arrival : take_arrivals()) {
      if (arrival.ticket == ticket) return;
    }
    wait(std::chrono::milliseconds(10));
  }
}

std::vector<RemoteTier::Arrival> RemoteTier::take_arrivals() {
  settle();
  return std::exchange(arrivals_, {});
}

void RemoteTier::wait(std::chrono::milliseconds most) {
  if (!arrivals_.empty()) return;
  std::unique_lock lock(mutex_);
  done_something_.wait_for(lock, most, [&] { return !answered_.empty() || !sent_.empty(); });
}

double RemoteTier::seconds_to_read(size_t bytes) {
  const std::lock_guard lock(mutex_);
  return round_trip_ + double(bytes + asked_bytes_) * seconds_per_byte_;
}

void RemoteTier::doubt_rate() {
  const std::lock_guard lock(mutex_);
  const auto doubt = [](double& value, double guess) {
    if (value > guess) value = std::max(0.98 * value, guess);
  };
  doubt(seconds_per_byte_, kFirstStoreGuess);
  doubt(round_trip_, kFirstRoundTrip);
}

void RemoteTier::learn_rate(size_t bytes, double seconds) {
  const double measured = seconds / double(bytes);
  seconds_per_byte_ =
      rate_is_measured_ ? (1 - kNewestOfStore) * seconds_per_byte_ + kNewestOfStore * measured : measured;
  rate_is_measured_ = true;
}

void RemoteTier::learn_round_trip(double seconds) {
  round_trip_ =
      round_trip_is_measured_ ? (1 - kNewestOfStore) * round_trip_ + kNewestOfStore * seconds : seconds;
  round_trip_is_measured_ = true;
}

RemoteTier::Stats RemoteTier::stats() {
  settle();
  const std::lock_guard lock(mutex_);
  Stats stats = stats_;
  stats.readable = is_readable();
  stats.writable = is_writable();
  stats.known_pages = known_.pages();
  stats.queued_bytes = queued_bytes_;
  stats.read_bytes_per_s = 1 / seconds_per_byte_;
  stats.round_trip_s = round_trip_;
  return stats;
}

// ---- what was done -----------------------------------------------------------------------------------------------

void RemoteTier::settle() {
  std::list<Sending> sent;
  std::list<Asking> answered;
  bool lost_touch = false;
  {
    const std::lock_guard lock(mutex_);
    sent.swap(sent_);
    answered.swap(answered_);
    lost_touch = std::exchange(lost_touch_, false);
    for (const Sending& page : sent) {
      if (!page.forgotten) count(page);
    }
  }
  if (lost_touch) forget_what_was_known();
  for (const Sending& page : sent) {
    const bool is_there = page.end == Sending::End::sent || page.end == Sending::End::there;
    if (!is_there && !page.forgotten) forget(page.node_page, {page.prefix.tokens, page.prefix.salt});
  }
  for (Asking& asking : answered) {
    if (!asking.arrival.failed) remember(asking);
    arrivals_.push_back(std::move(asking.arrival));
  }
}

void RemoteTier::count(const Sending& page) {
  switch (page.end) {
    case Sending::End::sent:
      ++stats_.sent_pages;
      stats_.sent_bytes += bytes_of(page.node_page);
      break;
    case Sending::End::there:
      ++stats_.there_pages;
      break;
    case Sending::End::refused:
      ++stats_.refused_pages;
      break;
    case Sending::End::dropped:
    case Sending::End::none:
      ++stats_.dropped_pages;
  }
}

void RemoteTier::remember(uint32_t node_page, const SaltedTokens& prefix) {
  const uint32_t group = known_.group_of(node_page);
  if (!known_.has_free(group)) known_.forget(group, known_.uses(group).front());
  known_.take(node_page, prefix);
}

void RemoteTier::forget(uint32_t node_page, const SaltedTokens& prefix) {
  if (const auto slot = known_.find(node_page, prefix)) known_.forget(known_.group_of(node_page), *slot);
}

void RemoteTier::remember(const Asking& answered) {
  const PromptKey& prompt = *answered.prompt;
  if (answered.for_page) {
    const size_t end = size_t(answered.node + 1) * layout_.node_tokens;
    if (!answered.arrival.bytes)
      forget(answered.node_page, {std::span(prompt.tokens).first(end), prompt.salt});
    return;
  }
  PrefixIndex& tree = known_.tree();
  PrefixNodeId at = tree.root_or_add(prompt.salt);
  tree.hold(at);  // what has to be forgotten for others must not take the way with it
  const size_t end = answered.node + answered.there.size();
  for (size_t node = 0; node < end; ++node) {
    const auto tokens = std::span(prompt.tokens).subspan(node * layout_.node_tokens, layout_.node_tokens);
    const auto known = tree.child(at, tokens);
    const PrefixNodeId next = known ? *known : tree.add(at, tokens);
    tree.hold(next);
    tree.drop(std::exchange(at, next));
    if (node < answered.node) continue;
    const std::vector<bool>& there = answered.there[node - answered.node];
    for (uint32_t n = 0; n < there.size(); ++n) {
      const std::optional<PageId> slot = tree.node(at).pages[n];
      const uint32_t group = known_.group_of(n);
      if (slot && !there[n]) known_.forget(group, slot->value);
      if (slot || !there[n]) continue;
      if (!known_.has_free(group)) known_.forget(group, known_.uses(group).front());
      known_.take_at(at, n);
    }
  }
  tree.drop(at);
}

void RemoteTier::forget_what_was_known() {
  for (uint32_t group = 0; group < known_.groups(); ++group) {
    while (!known_.uses(group).empty()) known_.forget(group, known_.uses(group).front());
  }
}

void RemoteTier::forget_all() {
  known_.forget_all();
  arrivals_.clear();
  const std::lock_guard lock(mutex_);
  for (Sending& page : to_send_) page.forgotten = true;  // its bytes are good, and it goes on its way
  for (const Sending& page : waiting_) queued_bytes_ -= bytes_of(page);
  if (!waiting_.empty()) {  // they are done with those before them
    Ticket& last = to_send_.empty() ? done_up_to_ : to_send_.back().ticket;
    last = std::max(last, waiting_.back().ticket);
  }
  waiting_.clear();
  for (Asking& asking : asked_) asked_bytes_ -= asking.for_page ? bytes_of(asking.node_page) : 0;
  asked_.clear();
  answered_.clear();
}

}  // namespace quire
