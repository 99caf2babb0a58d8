#include "base/memory_reserve.h"

#include <atomic>
#include <cstdlib>
#include <new>

namespace quire {
namespace {

constexpr size_t kReserveBytes = size_t(2) << 20;
std::atomic<void*> reserve{nullptr};

void give_reserve_back() {
  void* const kept = reserve.exchange(nullptr);
  if (kept == nullptr) throw std::bad_alloc();
  std::free(kept);
}

}  // namespace

void keep_memory_reserve() {
  if (reserve.load(std::memory_order_relaxed) != nullptr) return;
  std::set_new_handler(give_reserve_back);
  void* memory = std::malloc(kReserveBytes);
  void* none = nullptr;
  if (memory != nullptr && !reserve.compare_exchange_strong(none, memory)) std::free(memory);
}

}  // namespace quire
