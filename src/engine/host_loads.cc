#include "engine/host_loads.h"

#include <algorithm>
#include <utility>

namespace quire {
namespace {

constexpr size_t kMostOnTheWay = size_t(512) << 20;  // bytes: some ten milliseconds of a bus
constexpr size_t kAtOnce = size_t(64) << 20;         // of them, asked for together

}  // namespace

bool HostLoads::begin(Sequence& sequence, double compute_ms) {
  if (sequence.host.loading) return true;
  if (std::exchange(sequence.host.asked, true)) return false;
  TierMatch match = kv_.lookup_in_host(sequence.findable());
  if (match.pages.empty()) return false;
  size_t bytes = match.bytes + kv_.bytes_arriving();
  for (const Load& before : line_) {
    if (!before.is_asked()) bytes += before.match.bytes;
  }
  const double compute_seconds = double(match.tokens - match.memory_tokens) * compute_ms / 1000;
  if (compute_ms > 0 && tier_.seconds_to_move(bytes) > patience_ * compute_seconds) return false;
  line_.push_back({.sequence = &sequence, .match = std::move(match), .since = Clock::now()});
  sequence.host.loading = true;
  return true;
}

bool HostLoads::ask(Load& load) {
  const SaltedTokens tokens = load.sequence->findable();
  const uint64_t use = kv_.touch(tokens);  // what others use meanwhile is wanted later than this
  while (!load.is_asked()) {
    if (kv_.bytes_arriving() >= kMostOnTheWay) return false;
    size_t end = load.asked, bytes = 0;
    for (; end < load.match.pages.size() && bytes < kAtOnce; ++end)
      bytes += kv_.layout().node_page_bytes(load.match.pages[end].page);
    const auto pages = std::span(load.match.pages).subspan(load.asked, end - load.asked);
    const KvCache::Bringing bringing = kv_.bring_from_host(tokens, pages, use);
    load.asked += bringing.pages;
    load.ticket = std::max(load.ticket, bringing.ticket);
    // One had to go meanwhile, or there is no room: what is after it is of no use.
    if (bringing.pages < pages.size()) load.match.pages.resize(load.asked);
  }
  return true;
}

void HostLoads::ask_for_more() {
  if (line_.empty()) return;
  const size_t most = kv_bytes(kv_.layout(), kv_.pages_per_group()) / 2;
  size_t together = 0;
  for (Load& load : line_) {
    together += load.match.bytes;
    if (&load != &line_.front() && together > most) break;
    if (!load.is_asked() && !ask(load)) break;
  }
  end_done();  // of some there was nothing to bring
}

void HostLoads::advance() {
  end_done();
}

void HostLoads::end_done() {
  std::erase_if(line_, [&](const Load& load) {
    const bool done = load.is_asked() && load.ticket <= kv_.asides_made();
    if (done) end(load);
    return done;
  });
}

void HostLoads::end(const Load& load) {
  Sequence& sequence = *load.sequence;
  sequence.host.loading = false;
  if (load.asked > 0)
    sequence.host.memory_tokens =
        std::min(load.match.memory_tokens, sequence.host.memory_tokens.value_or(UINT32_MAX));
  if (!sequence.started) sequence.answer.account.host_ms += milliseconds_between(load.since, Clock::now());
}

void HostLoads::forget_all() {
  for (const Load& load : line_) load.sequence->host.loading = false;
  line_.clear();
}

void HostLoads::forget(const Sequence& sequence) {
  std::erase_if(line_, [&](const Load& load) { return load.sequence == &sequence; });
}

}  // namespace quire
