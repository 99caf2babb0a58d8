#include "kv/pages/kv_events.h"

#include <algorithm>

namespace quire {

std::string_view name(KvEventKind kind) {
  switch (kind) {
    case KvEventKind::reserved:
      return "reserved";
    case KvEventKind::shared:
      return "shared";
    case KvEventKind::copied:
      return "copied";
    case KvEventKind::published:
      return "published";
    case KvEventKind::released:
      return "released";
    case KvEventKind::preempted:
      return "preempted";
    case KvEventKind::evicted:
      return "evicted";
    case KvEventKind::pruned:
      return "pruned";
    case KvEventKind::restored:
      return "restored";
    case KvEventKind::stored:
      return "stored";
    case KvEventKind::loaded:
      return "loaded";
    case KvEventKind::kept:
      return "kept";
    case KvEventKind::fetched:
      return "fetched";
    case KvEventKind::sent:
      return "sent";
    case KvEventKind::received:
      break;
  }
  return "received";
}

std::vector<KvEvent> KvEvents::since(uint64_t since) const {
  std::vector<KvEvent> events;
  const uint64_t oldest = total_ > ring_.size() ? total_ - ring_.size() : 0;
  for (uint64_t i = std::max(since, oldest); i < total_; ++i) events.push_back(ring_[i % ring_.size()]);
  return events;
}

}  // namespace quire
