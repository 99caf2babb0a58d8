#pragma once

#include <atomic>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <ctime>
#include <new>

#include <malloc.h>

// For fuzz targets, which are programs of one source file each: whatever an input may cost, in time and in memory, is
// bounded by its length. Replaces operator new: include it in one source file of a program only.
namespace quire {

struct WorkLimits {
  double seconds = 1, seconds_per_byte = 20e-6;          // of the processor; sanitizers are slow
  size_t bytes = size_t(4) << 20, bytes_per_byte = 512;  // at once
};

// The bytes that operator new has given and did not get back, and the most there were since BoundedWork began.
inline std::atomic<int64_t> allocated_bytes{0}, most_allocated_bytes{0};

// Ends the program with a sentence if what is done while it lives costs more than an input of `input_bytes` may.
class BoundedWork {
 public:
  explicit BoundedWork(size_t input_bytes, const WorkLimits& limits = {})
      : input_bytes_(input_bytes), limits_(limits), begin_bytes_(allocated_bytes), begin_(now()) {
    most_allocated_bytes = begin_bytes_;
  }
  ~BoundedWork() {
    const double spent = now() - begin_;
    const double seconds = limits_.seconds + limits_.seconds_per_byte * double(input_bytes_);
    if (spent > seconds) {
      std::fprintf(stderr, "an input of %zu bytes took %.3f s; it may take %.3f s\n", input_bytes_, spent,
                   seconds);
      std::abort();
    }
    const int64_t held = most_allocated_bytes - begin_bytes_;
    const auto bytes = int64_t(limits_.bytes + limits_.bytes_per_byte * input_bytes_);
    if (held > bytes) {
      std::fprintf(stderr, "an input of %zu bytes held %lld bytes at once; it may hold %lld\n", input_bytes_,
                   static_cast<long long>(held), static_cast<long long>(bytes));
      std::abort();
    }
  }
  BoundedWork(const BoundedWork&) = delete;
  BoundedWork& operator=(const BoundedWork&) = delete;

 private:
  static double now() {
    timespec time{};
    ::clock_gettime(CLOCK_THREAD_CPUTIME_ID, &time);
    return double(time.tv_sec) + double(time.tv_nsec) * 1e-9;
  }

  size_t input_bytes_;
  WorkLimits limits_;
  int64_t begin_bytes_;
  double begin_;
};

}  // namespace quire

// NOLINTBEGIN(misc-definitions-in-headers)
void* operator new(size_t size, const std::nothrow_t&) noexcept {
  void* memory = std::malloc(size);
  if (memory == nullptr) return nullptr;
  const int64_t held = quire::allocated_bytes += int64_t(::malloc_usable_size(memory));
  if (held > quire::most_allocated_bytes) quire::most_allocated_bytes = held;
  return memory;
}
void* operator new(size_t size) {
  void* memory = operator new(size, std::nothrow);
  if (memory == nullptr) throw std::bad_alloc();
  return memory;
}
void* operator new[](size_t size) {
  return operator new(size);
}
void* operator new[](size_t size, const std::nothrow_t&) noexcept {
  return operator new(size, std::nothrow);
}
void operator delete(void* memory) noexcept {
  if (memory != nullptr) quire::allocated_bytes -= int64_t(::malloc_usable_size(memory));
  std::free(memory);
}
void operator delete(void* memory, size_t) noexcept {
  operator delete(memory);
}
void operator delete[](void* memory) noexcept {
  operator delete(memory);
}
void operator delete[](void* memory, size_t) noexcept {
  operator delete(memory);
}
// NOLINTEND(misc-definitions-in-headers)
