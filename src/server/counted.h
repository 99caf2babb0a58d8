#pragma once

#include <cstdint>

namespace quire {

// Counts one more while it lives. A coroutine that is destroyed before its end has been counted, too.
class Counted {
 public:
  explicit Counted(uint32_t& count) : count_(count) { ++count_; }
  ~Counted() { --count_; }
  Counted(const Counted&) = delete;
  Counted& operator=(const Counted&) = delete;

 private:
  uint32_t& count_;
};

}  // namespace quire
