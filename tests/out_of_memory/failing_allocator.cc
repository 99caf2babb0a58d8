#include "failing_allocator.h"

#include <atomic>
#include <cerrno>
#include <cstdlib>
#include <new>

namespace quire::failing_allocator {
namespace {

thread_local bool takes_part = false;
std::atomic<uint64_t> asked{0}, failing{0};

}  // namespace

void take_part() {
  takes_part = true;
}

void stand_aside() {
  takes_part = false;
}

void fail_at(uint64_t nth) {
  failing = 0;
  asked = 0;
  failing = nth;
}

uint64_t count() {
  return asked;
}

bool has_failed() {
  return failing != 0 && asked >= failing;
}

// Whether this is the one.
static bool fails() {
  return takes_part && ++asked == failing;
}

}  // namespace quire::failing_allocator

void* operator new(size_t size, const std::nothrow_t&) noexcept {
  return quire::failing_allocator::fails() ? nullptr : std::malloc(size > 0 ? size : 1);
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
  std::free(memory);
}
void operator delete(void* memory, size_t) noexcept {
  std::free(memory);
}
void operator delete[](void* memory) noexcept {
  std::free(memory);
}
void operator delete[](void* memory, size_t) noexcept {
  std::free(memory);
}

// Asio takes its memory from here.
extern "C" void* aligned_alloc(size_t alignment, size_t size) {
  void* memory = nullptr;
  if (quire::failing_allocator::fails() || ::posix_memalign(&memory, alignment, size) != 0) {
    errno = ENOMEM;
    return nullptr;
  }
  return memory;
}
