#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <mutex>

namespace quire::capi {

// What a program's handles stand for. A handle is a number that is never given twice, so one that was closed is known as such, and
// what it stood for lives until the last call that uses it is over. Any thread.
template <class Thing, class Handle>
class Handles {
 public:
  Handle* add(std::shared_ptr<Thing> thing) {
    const std::lock_guard lock(mutex_);
    things_.emplace(++last_, std::move(thing));
    return reinterpret_cast<Handle*>(last_);
  }
  std::shared_ptr<Thing> find(const Handle* handle) const {
    const std::lock_guard lock(mutex_);
    const auto found = things_.find(reinterpret_cast<uintptr_t>(handle));
    return found == things_.end() ? nullptr : found->second;
  }
  // Null if there is no such handle.
  std::shared_ptr<Thing> remove(const Handle* handle) {
    const std::lock_guard lock(mutex_);
    const auto node = things_.extract(reinterpret_cast<uintptr_t>(handle));
    return node.empty() ? nullptr : node.mapped();
  }

 private:
  mutable std::mutex mutex_;
  std::map<uintptr_t, std::shared_ptr<Thing>> things_;
  uintptr_t last_ = 0;
};

}  // namespace quire::capi
