#include "base/thread_pool.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <fstream>
#include <string>
#include <utility>

#include <sched.h>

#include "base/check.h"

namespace quire {
namespace {

// Loops follow each other within microseconds during a step, and a thread that sleeps takes tens of them to wake up: look
// again for a while first. Where threads have to share CPUs, others could use the time.
constexpr std::chrono::microseconds kPatience{200}, kPatienceOnSharedCpus{3};
constexpr int kLooks = 32;  // between two looks at the clock

void relax() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

template <class T>
void wait_while_equal(const std::atomic<T>& value, T old, std::chrono::microseconds patience) {
  const auto end = std::chrono::steady_clock::now() + patience;
  do {
    for (int look = 0; look < kLooks; ++look) {
      if (value.load(std::memory_order_acquire) != old) return;
      relax();
    }
  } while (std::chrono::steady_clock::now() < end);
  while (value.load(std::memory_order_acquire) == old) value.wait(old, std::memory_order_acquire);
}

}  // namespace

ThreadPool::ThreadPool(uint32_t threads)
    : patience_(threads <= usable_cpus() ? kPatience : kPatienceOnSharedCpus) {
  CHECK(threads >= 1);
  workers_.reserve(threads - 1);
  for (uint32_t i = 1; i < threads; ++i) workers_.emplace_back([this] { work(); });
}

ThreadPool::~ThreadPool() {
  stop_ = true;
  generation_.fetch_add(1, std::memory_order_release);
  generation_.notify_all();
  for (std::thread& worker : workers_) worker.join();
}

void ThreadPool::parallel_for(size_t count, size_t grain, const std::function<void(size_t, size_t)>& body) {
  CHECK(grain > 0);
  if (count == 0) return;
  if (workers_.empty() || count <= grain) {
    body(0, count);
    return;
  }
  loop_ = {count, grain, &body};
  next_.store(0, std::memory_order_relaxed);
  const uint32_t generation = generation_.load(std::memory_order_relaxed) + 1;
  gate_.store(uint64_t(generation) << kGenerationShift, std::memory_order_release);
  generation_.store(
      generation);  // before notify_all looks for sleepers, or one that is about to sleep is missed
  generation_.notify_all();
  take_ranges();
  uint64_t gate = gate_.fetch_or(kClosed, std::memory_order_acq_rel) | kClosed;
  while ((gate & kInside) != 0) {
    wait_while_equal(gate_, gate, patience_);
    gate = gate_.load(std::memory_order_acquire);
  }
  if (failed_.load(
          std::memory_order_relaxed)) {  // only looked at: to write would take it from the threads' caches
    failed_.store(false, std::memory_order_relaxed);
    std::rethrow_exception(std::exchange(problem_, nullptr));
  }
}

bool ThreadPool::enter(uint32_t generation) {
  uint64_t gate = gate_.load(std::memory_order_acquire);
  while ((gate & kClosed) == 0 && uint32_t(gate >> kGenerationShift) == generation) {
    if (gate_.compare_exchange_weak(gate, gate + 1, std::memory_order_acq_rel, std::memory_order_acquire))
      return true;
  }
  return false;
}

void ThreadPool::work() {
  uint32_t seen = 0;
  while (true) {
    wait_while_equal(generation_, seen, patience_);
    seen = generation_.load(std::memory_order_acquire);
    if (stop_) return;  // looked at last: the generation that says so might be the one that was just seen
    if (!enter(seen)) continue;  // it is over already
    take_ranges();
    const uint64_t gate = gate_.fetch_sub(1, std::memory_order_acq_rel) - 1;
    if ((gate & kClosed) != 0 && (gate & kInside) == 0) gate_.notify_one();
  }
}

void ThreadPool::take_ranges() {
  try {
    while (true) {
      const size_t begin = next_.fetch_add(loop_.grain, std::memory_order_relaxed);
      if (begin >= loop_.count) return;
      (*loop_.body)(begin, std::min(begin + loop_.grain, loop_.count));
    }
  } catch (...) {
    if (!failed_.exchange(true, std::memory_order_relaxed)) problem_ = std::current_exception();
    next_.store(loop_.count, std::memory_order_relaxed);  // the rest would be for nothing
  }
}

uint32_t usable_cpus() {
  cpu_set_t set;
  CPU_ZERO(&set);
  uint32_t cpus = std::max(1u, std::thread::hardware_concurrency());
  if (sched_getaffinity(0, sizeof(set), &set) == 0) cpus = std::max(1, CPU_COUNT(&set));
  std::ifstream quota_file("/sys/fs/cgroup/cpu.max");
  std::string quota;
  double period = 0;
  if (quota_file >> quota >> period && quota != "max" && period > 0) {
    cpus = std::clamp<uint32_t>(uint32_t(std::ceil(std::stod(quota) / period)), 1, cpus);
  }
  return cpus;
}

}  // namespace quire
