#include "engine/disk_loads.h"

#include <algorithm>
#include <utility>

namespace quire {
namespace {

// That are read before they are taken: enough to keep the disk busy during a step, and less than may wait to be written,
// because each page that comes back may send another to the disk.
constexpr size_t kReadAheadBytes = size_t(32) << 20;

}  // namespace

bool DiskLoads::begin(Sequence& sequence, double compute_ms) {
  if (sequence.disk.loading) return true;
  if (std::exchange(sequence.disk.asked, true)) return false;
  TierMatch match = kv_.lookup_on_disk(sequence.findable());
  if (match.pages.empty()) return false;
  size_t bytes = match.bytes;
  for (const Load& before : line_) bytes += before.match.bytes;
  const double read_seconds = tier_.seconds_to_read(bytes);
  const double compute_seconds = double(match.tokens - match.memory_tokens) * compute_ms / 1000;
  if (compute_ms > 0 && read_seconds > patience_ * compute_seconds) {
    tier_.doubt_rate();
    return false;
  }
  sequence.disk.loading = true;
  Load& load = line_.emplace_back();
  load.sequence = &sequence;
  load.match = std::move(match);
  load.since = Clock::now();
  if (line_.size() == 1 && !start_front()) end_front();
  return sequence.disk.loading;
}

// What those before it have loaded, or others have computed, is not read again.
bool DiskLoads::start_front() {
  Load& load = line_.front();
  const SaltedTokens tokens = load.sequence->findable();
  load.match = kv_.lookup_on_disk(tokens);
  kv_.touch(tokens);
  ask_for_more(load);
  return !load.tickets.empty();
}

SaltedTokens DiskLoads::prefix_of(const Load& load, const TierMatch::Page& page) const {
  return load.sequence->findable().first(size_t(page.node + 1) * kv_.node_tokens());
}

void DiskLoads::ask_for_more(Load& load) {
  while (load.asked < load.match.pages.size() && load.bytes_on_the_way < kReadAheadBytes) {
    const TierMatch::Page& page = load.match.pages[load.asked];
    const auto ticket = tier_.read(page.page, prefix_of(load, page));
    if (!ticket) {  // it had to go meanwhile, and what is after it is of no use
      load.match.pages.resize(load.asked);
      return;
    }
    load.tickets.push_back(*ticket);
    load.bytes_on_the_way += kv_.layout().node_page_bytes(page.page);
    ++load.asked;
  }
}

bool DiskLoads::take(Load& load, DiskTier::Arrival& arrival) {
  const TierMatch::Page& page = load.match.pages[load.arrived++];
  const size_t bytes = kv_.layout().node_page_bytes(page.page);
  load.tickets.pop_front();
  load.bytes_on_the_way -= bytes;
  load.match.bytes -= bytes;
  if (!arrival.bytes || !kv_.bring_back(page.page, prefix_of(load, page), std::move(arrival.bytes), load.use))
    return false;
  ++load.brought_back;
  return true;
}

void DiskLoads::advance() {
  const Sequence* touched = nullptr;
  for (DiskTier::Arrival& arrival : tier_.take_arrivals()) {
    // One that nobody wants any more is not taken: the tier still has it.
    if (line_.empty() || line_.front().tickets.empty() || line_.front().tickets.front() != arrival.ticket)
      continue;
    Load& load = line_.front();
    // Others may have used pages since the last that came; those of this prompt are wanted sooner.
    if (std::exchange(touched, load.sequence) != load.sequence)
      load.use = kv_.touch(load.sequence->findable());
    if (!take(load, arrival)) {
      end_front();
      continue;
    }
    ask_for_more(load);
    if (load.tickets.empty()) end_front();
  }
}

void DiskLoads::end_front() {
  do {
    const Load& load = line_.front();
    Sequence& sequence = *load.sequence;
    sequence.disk.loading = false;
    if (load.brought_back > 0) {
      sequence.disk.memory_tokens = load.match.memory_tokens;
      sequence.host.asked = false;  // it may have what comes after
    }
    if (!sequence.started) sequence.answer.account.disk_ms = milliseconds_between(load.since, Clock::now());
    line_.pop_front();
  } while (!line_.empty() && !start_front());
}

void DiskLoads::forget_all() {
  for (const Load& load : line_) load.sequence->disk.loading = false;
  line_.clear();
}

void DiskLoads::forget(const Sequence& sequence) {
  const auto found =
      std::ranges::find_if(line_, [&](const Load& load) { return load.sequence == &sequence; });
  if (found == line_.end()) return;
  if (found == line_.begin()) {
    end_front();
  } else {
    line_.erase(found);
  }
}

}  // namespace quire
