#include "server/response_store.h"

#include <algorithm>
#include <chrono>

#include "base/check.h"

namespace quire {
namespace {

constexpr size_t kBytesBeside = 512;  // of an entry, besides its texts

}  // namespace

void ResponseStore::keep(const std::string& id, const std::string& owner, Kept kept, Clock::time_point now) {
  const size_t bytes = kept.response.size() + kept.items.size() + kBytesBeside;
  if (bytes > limits_.bytes) return;
  Entry entry{.id = id, .kept = std::make_shared<const Kept>(std::move(kept)), .bytes = bytes, .until = {}};
  entry.until =
      now + std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(limits_.seconds));
  const std::lock_guard lock(mutex_);
  CHECK(!places_.contains(id));
  drop_what_is_over(now);
  make_room(bytes);
  std::list<Entry> one;
  one.push_back(std::move(entry));
  const auto share = shares_.try_emplace(owner).first;
  try {
    places_.emplace(id, Place{share, one.begin()});
  } catch (const std::bad_alloc&) {
    if (share->second.entries.empty()) shares_.erase(share);
    throw;
  }
  share->second.entries.splice(share->second.entries.end(), one);
  share->second.bytes += bytes;
  bytes_ += bytes;
}

std::shared_ptr<const ResponseStore::Kept> ResponseStore::find(const std::string& id, const Viewer& viewer,
                                                               Clock::time_point now) {
  const std::lock_guard lock(mutex_);
  drop_what_is_over(now);
  const auto found = places_.find(id);
  if (found == places_.end() || !viewer.sees(found->second.share->first)) return nullptr;
  return found->second.entry->kept;
}

bool ResponseStore::remove(const std::string& id, const Viewer& viewer, Clock::time_point now) {
  const std::lock_guard lock(mutex_);
  drop_what_is_over(now);
  const auto found = places_.find(id);
  if (found == places_.end() || !viewer.sees(found->second.share->first)) return false;
  drop(found->second.share, found->second.entry);
  return true;
}

size_t ResponseStore::bytes() const {
  const std::lock_guard lock(mutex_);
  return bytes_;
}

void ResponseStore::drop(Shares::iterator share, std::list<Entry>::iterator entry) {
  bytes_ -= entry->bytes;
  share->second.bytes -= entry->bytes;
  places_.erase(entry->id);
  share->second.entries.erase(entry);
  if (share->second.entries.empty()) shares_.erase(share);
}

void ResponseStore::drop_what_is_over(Clock::time_point now) {
  for (auto share = shares_.begin(); share != shares_.end();) {
    const auto next = std::next(share);
    // The last to go takes its share along.
    for (size_t left = share->second.entries.size(); left > 0; --left) {
      const auto oldest = share->second.entries.begin();
      if (oldest->until > now) break;
      drop(share, oldest);
    }
    share = next;
  }
}

void ResponseStore::make_room(size_t bytes) {
  while (bytes_ + bytes > limits_.bytes) {
    const auto by_bytes = [](const auto& a, const auto& b) { return a.second.bytes < b.second.bytes; };
    const auto largest = std::max_element(shares_.begin(), shares_.end(), by_bytes);
    drop(largest, largest->second.entries.begin());
  }
}

}  // namespace quire
