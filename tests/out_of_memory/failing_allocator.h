#pragma once

#include <cstdint>

namespace quire {

// In a program that links failing_allocator.cc, the n-th allocation by operator new from here on fails, on whatever
// thread; those before and after it do not.
class FailingAllocation {
 public:
  explicit FailingAllocation(uint64_t n);
  ~FailingAllocation();
  FailingAllocation(const FailingAllocation&) = delete;
  FailingAllocation& operator=(const FailingAllocation&) = delete;

  // It has come and failed.
  bool happened() const;
};

}  // namespace quire
