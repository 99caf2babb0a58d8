#include "engine/remote_loads.h"

#include <algorithm>
#include <utility>

namespace quire {
namespace {

// That are asked for before they are taken: enough to keep the network busy, and little enough that somebody else's question is
// answered soon.
constexpr size_t kAskedAheadBytes = size_t(8) << 20;
constexpr double kLeastWaitMs = 50, kMostWaitMs = 10'000;

}  // namespace

uint32_t RemoteLoads::first_node_missing(uint32_t memory_tokens) const {
  uint32_t first = memory_tokens / kv_.node_tokens();
  for (const KvGroupLayout& group : kv_.layout().groups) {
    if (group.keeps_all() || group.is_state) continue;
    const uint32_t seen = group.first_page_seen(memory_tokens) * group.page_tokens;  // a window's may be gone
    first = std::min(first, seen / kv_.node_tokens());
  }
  return first;
}

size_t RemoteLoads::bytes_of(uint32_t tokens) const {
  size_t bytes = 0;
  for (const KvGroupLayout& group : kv_.layout().groups) {
    const uint32_t seen = group.keeps_all() ? tokens : std::min(tokens, group.window);
    bytes += group.is_state ? group.page_bytes : seen * group.bytes_per_token();
  }
  return bytes;
}

bool RemoteLoads::is_worth_it(size_t bytes, uint32_t tokens, double compute_ms) {
  for (const Load& before : line_) bytes += before.match.bytes;
  return compute_ms <= 0 || tier_.seconds_to_read(bytes) <= patience_ * double(tokens) * compute_ms / 1000;
}

bool RemoteLoads::begin(Sequence& sequence, double compute_ms) {
  if (sequence.remote.loading) return true;
  if (std::exchange(sequence.remote.asked, true)) return false;
  const SaltedTokens tokens = sequence.findable();
  StoreOutcome& outcome = sequence.answer.account.store;
  if (tokens.size() == 0 || !tier_.takes(tokens.salt)) return false;
  const uint32_t memory_tokens = kv_.lookup(tokens).tokens;
  const uint32_t whole = uint32_t(tokens.size() - 1) / kv_.node_tokens() * kv_.node_tokens();
  if (whole <= memory_tokens) return false;
  if (!tier_.is_readable()) {
    outcome = StoreOutcome::unreachable;
    return false;
  }
  const uint32_t missing = whole - memory_tokens;
  if (!is_worth_it(bytes_of(missing), missing, compute_ms)) {
    tier_.doubt_rate();
    outcome = StoreOutcome::slower;
    return false;
  }
  Load load{.sequence = &sequence};
  load.prompt =
      std::make_shared<const PromptKey>(PromptKey{{tokens.tokens.begin(), tokens.tokens.end()}, tokens.salt});
  load.question = tier_.ask(load.prompt, first_node_missing(memory_tokens), sequence.request.handed_over);
  load.since = Clock::now();
  load.compute_ms = compute_ms;
  const double wait_ms = compute_ms > 0 ? patience_ * double(missing) * compute_ms : kMostWaitMs;
  load.latest =
      load.since + std::chrono::microseconds(int64_t(1000 * std::clamp(wait_ms, kLeastWaitMs, kMostWaitMs)));
  line_.push_back(std::move(load));
  sequence.remote.loading = true;
  return true;
}

void RemoteLoads::answered(Load& load, const RemoteTier::Arrival& arrival) {
  load.question = 0;
  const SaltedTokens tokens(load.prompt->tokens, load.prompt->salt);
  load.match = kv_.lookup_in_store(tokens);
  if (arrival.failed) return end(load, StoreOutcome::unreachable);
  if (load.match.pages.empty()) return end(load, StoreOutcome::nothing);
  const uint32_t missing = load.match.tokens - load.match.memory_tokens;
  const size_t bytes = std::exchange(load.match.bytes, 0);  // not counted twice
  const bool worth = is_worth_it(bytes, missing, load.compute_ms);
  load.match.bytes = bytes;
  if (worth) return;
  tier_.doubt_rate();
  end(load, StoreOutcome::slower);
}

// What those before it have fetched, or others have computed, is not fetched again.
void RemoteLoads::start_front() {
  while (!line_.empty() && line_.front().question == 0 && line_.front().tickets.empty()) {
    Load& load = line_.front();
    const SaltedTokens tokens(load.prompt->tokens, load.prompt->salt);
    load.match = kv_.lookup_in_store(tokens);
    load.use = kv_.touch(tokens);
    load.asked = load.arrived = 0;
    ask_for_more(load);
    if (!load.tickets.empty()) return;
    end_front(load.brought_back > 0 ? StoreOutcome::came : StoreOutcome::nothing);
  }
}

void RemoteLoads::ask_for_more(Load& load) {
  while (load.asked < load.match.pages.size() && load.bytes_on_the_way < kAskedAheadBytes) {
    const TierMatch::Page& page = load.match.pages[load.asked++];
    load.tickets.push_back(tier_.read(load.prompt, page.page, page.node));
    load.bytes_on_the_way += kv_.layout().node_page_bytes(page.page);
  }
}

bool RemoteLoads::take(Load& load, const RemoteTier::Arrival& arrival) {
  const TierMatch::Page& page = load.match.pages[load.arrived++];
  const size_t bytes = kv_.layout().node_page_bytes(page.page);
  load.tickets.pop_front();
  load.bytes_on_the_way -= bytes;
  load.match.bytes -= bytes;
  const SaltedTokens all(load.prompt->tokens, load.prompt->salt);
  const SaltedTokens prefix = all.first(size_t(page.node + 1) * kv_.node_tokens());
  if (!arrival.bytes || !kv_.bring_back(page.page, prefix, arrival.bytes, load.use, KvEventKind::received))
    return false;
  ++load.brought_back;
  return true;
}

void RemoteLoads::advance() {
  const Sequence* touched = nullptr;
  for (const RemoteTier::Arrival& arrival : tier_.take_arrivals()) {
    const auto asker = std::ranges::find(line_, arrival.ticket, &Load::question);
    if (asker != line_.end()) {
      answered(*asker, arrival);
      continue;
    }
    // One that nobody wants any more is not taken.
    if (line_.empty() || line_.front().tickets.empty() || line_.front().tickets.front() != arrival.ticket)
      continue;
    Load& load = line_.front();
    // Others may have used pages since the last that came; those of this prompt are wanted sooner.
    if (std::exchange(touched, load.sequence) != load.sequence)
      load.use = kv_.touch({load.prompt->tokens, load.prompt->salt});
    if (!take(load, arrival)) {
      end_front(arrival.failed                           ? StoreOutcome::unreachable
                : arrival.fault != PageFault::none       ? StoreOutcome::refused
                : load.brought_back > 0 || arrival.bytes ? StoreOutcome::came
                                                         : StoreOutcome::nothing);
      continue;
    }
    ask_for_more(load);
    if (load.tickets.empty()) end_front(StoreOutcome::came);
  }
  const Clock::time_point now = Clock::now();
  for (Load& load : line_) {
    if (load.sequence != nullptr && load.latest <= now) end(load, StoreOutcome::late);
  }
  std::erase_if(line_, [](const Load& load) { return load.sequence == nullptr; });
  start_front();
}

// It is taken out of the line later.
void RemoteLoads::end(Load& load, StoreOutcome outcome) {
  Sequence& sequence = *std::exchange(load.sequence, nullptr);
  sequence.remote.loading = false;
  if (load.brought_back > 0) {
    sequence.remote.memory_tokens = load.match.memory_tokens;
    sequence.host.asked = sequence.disk.asked = false;  // they may have what comes after
  }
  load.tickets.clear();
  load.question = 0;
  if (sequence.started) return;
  sequence.answer.account.store = outcome;
  sequence.answer.account.remote_ms += milliseconds_between(load.since, Clock::now());
}

void RemoteLoads::end_front(StoreOutcome outcome) {
  end(line_.front(), outcome);
  line_.pop_front();
}

void RemoteLoads::forget_all() {
  for (const Load& load : line_) load.sequence->remote.loading = false;
  line_.clear();
}

void RemoteLoads::forget(const Sequence& sequence) {
  std::erase_if(line_, [&](const Load& load) { return load.sequence == &sequence; });
}

}  // namespace quire
