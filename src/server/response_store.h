#pragma once

#include <cstddef>
#include <list>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <unordered_map>

#include "base/clock.h"
#include "server/viewer.h"

namespace quire {

// Responses that clients may ask for again or go on from: so many bytes, for so long. When there are more, the oldest go of
// whoever has most, so that none can push out another's. Any thread may use it.
class ResponseStore {
 public:
  struct Limits {
    size_t bytes = size_t(64) << 20;  // 0: nothing is kept
    double seconds = 3600;
  };
  // Both as JSON.
  struct Kept {
    std::string response;
    std::string items;  // all that was said up to its end
  };

  explicit ResponseStore(const Limits& limits) : limits_(limits) {}

  // One that is larger than all may be is not kept.
  void keep(const std::string& id, const std::string& owner, Kept kept, Clock::time_point now = Clock::now());
  // Null: there is none that the viewer may see.
  std::shared_ptr<const Kept> find(const std::string& id, const Viewer& viewer,
                                   Clock::time_point now = Clock::now());
  bool remove(const std::string& id, const Viewer& viewer, Clock::time_point now = Clock::now());
  size_t bytes() const;

 private:
  struct Entry {
    std::string id;
    std::shared_ptr<const Kept> kept;
    size_t bytes = 0;
    Clock::time_point until;
  };
  struct Share {
    std::list<Entry> entries;  // the oldest first
    size_t bytes = 0;
  };
  using Shares = std::map<std::string, Share>;  // by owner; none is empty
  struct Place {
    Shares::iterator share;
    std::list<Entry>::iterator entry;
  };

  void drop(Shares::iterator share, std::list<Entry>::iterator entry);
  void drop_what_is_over(Clock::time_point now);
  void make_room(size_t bytes);

  const Limits limits_;
  mutable std::mutex mutex_;
  Shares shares_;
  std::unordered_map<std::string, Place> places_;  // by id
  size_t bytes_ = 0;                               // of all; never above the limit
};

}  // namespace quire
