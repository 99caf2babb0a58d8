#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

#include "base/clock.h"
#include "base/id.h"
#include "kv/pages/page_pool.h"

namespace quire {

using SequenceId = Id<struct SequenceTag>;

// What happened to a page.
enum class KvEventKind : uint8_t {
  reserved,   // a free page was given to a sequence
  shared,     // a sequence took a share of a published page
  copied,     // its rows up to the first that differs were copied from a published page
  published,  // it is full, or its sequence ended: it is immutable and can be found
  released,   // a sequence gave up its share
  preempted,  // the same, because another sequence needed the room
  evicted,    // nobody held it, and its memory was needed
  pruned,     // a sequence kept some of its rows elsewhere and gave up its share
  restored,   // its contents came from a snapshot: it can be found, and nobody holds it
  stored,     // it was evicted, and its contents go to the disk
  loaded,     // its contents came back from the disk: it can be found, and nobody holds it
  kept,       // its contents go to the host's memory; it may be evicted then, or was
  fetched,    // its contents came back from there: it can be found, and nobody holds it
  sent,       // its contents go to the store that others share; it stays where it is
  received,   // its contents came from that store: it can be found, and nobody holds it
};
inline constexpr size_t kKvEventKinds = size_t(KvEventKind::received) + 1;
std::string_view name(KvEventKind kind);

struct KvEvent {
  Clock::time_point time;
  KvEventKind kind = KvEventKind::reserved;
  uint32_t group = 0;
  PageId page;
  uint32_t index = 0;   // of the page in its sequence
  SequenceId sequence;  // of no meaning where a page is evicted, restored, or went to a tier or came from one
};

// The last events, and how many of each kind there ever were. Engine thread only.
class KvEvents {
 public:
  explicit KvEvents(size_t capacity = 1 << 14) : ring_(capacity) {}

  void add(const KvEvent& event) {
    ring_[total_++ % ring_.size()] = event;
    ++counts_[size_t(event.kind)];
  }
  uint64_t total() const { return total_; }
  uint64_t count(KvEventKind kind) const { return counts_[size_t(kind)]; }
  // Those from the `since`th on that are still kept, the oldest first.
  std::vector<KvEvent> since(uint64_t since) const;

 private:
  std::vector<KvEvent> ring_;
  uint64_t total_ = 0;
  uint64_t counts_[kKvEventKinds] = {};
};

}  // namespace quire
