#pragma once

#include <cstdint>

// Makes an allocation fail, to see what a lack of memory does. Replaces operator new and aligned_alloc: a test program of
// its own links failing_allocator.cc.
namespace quire::failing_allocator {

// From now on allocations of this thread count. (Others, such as a test's own, never fail.)
void take_part();
// It does not any more.
void stand_aside();

// The `nth` allocation from now on fails, of all threads that take part; 0: none does.
void fail_at(uint64_t nth);
// So many were asked for since then.
uint64_t count();
// Whether it came to that.
bool has_failed();

}  // namespace quire::failing_allocator
