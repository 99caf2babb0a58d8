#include "failing_allocator.h"

#include <atomic>
#include <cstdlib>
#include <new>

namespace {

std::atomic<int64_t> countdown{-1};  // allocations that still succeed; negative: all do
std::atomic<bool> has_failed{false};

bool fails_now() {
  if (countdown.load(std::memory_order_relaxed) < 0) return false;
  if (countdown.fetch_sub(1, std::memory_order_relaxed) != 0) return false;
  has_failed = true;
  return true;
}

void* allocate(size_t bytes) {
  return fails_now() ? nullptr : std::malloc(bytes == 0 ? 1 : bytes);
}

void* allocate(size_t bytes, std::align_val_t alignment) {
  if (fails_now()) return nullptr;
  const size_t grain = size_t(alignment);
  return std::aligned_alloc(grain, (bytes + grain - 1) / grain * grain);
}

void* or_throw(void* memory) {
  if (memory == nullptr) throw std::bad_alloc();
  return memory;
}

}  // namespace

void* operator new(size_t bytes) {
  return or_throw(allocate(bytes));
}
void* operator new[](size_t bytes) {
  return or_throw(allocate(bytes));
}
void* operator new(size_t bytes, std::align_val_t alignment) {
  return or_throw(allocate(bytes, alignment));
}
void* operator new[](size_t bytes, std::align_val_t alignment) {
  return or_throw(allocate(bytes, alignment));
}
void* operator new(size_t bytes, const std::nothrow_t&) noexcept {
  return allocate(bytes);
}
void* operator new[](size_t bytes, const std::nothrow_t&) noexcept {
  return allocate(bytes);
}
void operator delete(void* memory) noexcept {
  std::free(memory);
}
void operator delete[](void* memory) noexcept {
  std::free(memory);
}
void operator delete(void* memory, size_t) noexcept {
  std::free(memory);
}
void operator delete[](void* memory, size_t) noexcept {
  std::free(memory);
}
void operator delete(void* memory, std::align_val_t) noexcept {
  std::free(memory);
}
void operator delete[](void* memory, std::align_val_t) noexcept {
  std::free(memory);
}
void operator delete(void* memory, size_t, std::align_val_t) noexcept {
  std::free(memory);
}
void operator delete[](void* memory, size_t, std::align_val_t) noexcept {
  std::free(memory);
}

namespace quire {

FailingAllocation::FailingAllocation(uint64_t n) {
  has_failed = false;
  countdown = int64_t(n) - 1;
}

FailingAllocation::~FailingAllocation() {
  countdown = -1;
}

bool FailingAllocation::happened() const {
  return has_failed;
}

}  // namespace quire
