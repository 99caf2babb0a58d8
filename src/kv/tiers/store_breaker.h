#pragma once

#include <algorithm>
#include <chrono>

#include "base/clock.h"

namespace quire {

// When something that has failed may be tried again: after a pause, which doubles with every failure until it works. One thread.
class StoreBreaker {
 public:
  struct Pauses {
    std::chrono::milliseconds first{500}, longest{30'000};
  };
  explicit StoreBreaker(const Pauses& pauses) : pauses_(pauses), pause_(pauses.first) {}

  bool is_open() const { return open_; }
  bool may_try(Clock::time_point now) const { return !open_ || now >= again_; }
  Clock::time_point again() const { return again_; }

  void worked() {
    open_ = false;
    pause_ = pauses_.first;
  }
  // It may be used again, but has not shown yet that it works.
  void half_close() { open_ = false; }
  void failed(Clock::time_point now) {
    open_ = true;
    again_ = now + pause_;
    pause_ = std::min(2 * pause_, pauses_.longest);
  }

 private:
  Pauses pauses_;
  std::chrono::milliseconds pause_;
  Clock::time_point again_ = {};
  bool open_ = false;
};

}  // namespace quire
