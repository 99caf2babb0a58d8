#pragma once

#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <functional>
#include <thread>
#include <vector>

namespace quire {

// A fixed set of threads that run one parallel loop at a time. The caller takes part, so `threads` = 1 starts
// none, and it waits only for those that took part too: a worker that the system has not given a CPU is not missed. Owned and called by one thread (the engine's).
class ThreadPool {
 public:
  explicit ThreadPool(uint32_t threads);
  ~ThreadPool();
  ThreadPool(const ThreadPool&) = delete;
  ThreadPool& operator=(const ThreadPool&) = delete;

  uint32_t size() const { return uint32_t(workers_.size()) + 1; }

  // Calls body(begin, end) over disjoint ranges that cover [0, count), each at most `grain` long. Which
  // thread takes which range is left open: a body must give the same result whoever runs it. What a body throws ends the
  // loop, and is thrown again here; of several the first.
  void parallel_for(size_t count, size_t grain, const std::function<void(size_t, size_t)>& body);

 private:
  struct Loop {
    size_t count = 0;
    size_t grain = 1;
    const std::function<void(size_t, size_t)>* body = nullptr;
  };

  void work();
  void take_ranges();

  // The gate of the current loop: how many workers are inside it, whether it is closed, and its generation.
  static constexpr uint64_t kInside = 0xffff, kClosed = 0x10000;
  static constexpr int kGenerationShift = 32;
  bool enter(uint32_t generation);

  const std::chrono::microseconds patience_;  // with which a thread waits before it sleeps
  // What all threads write or watch has cache lines of its own.
  Loop loop_;  // written by the caller only while the gate is closed and nobody is inside
  alignas(64) std::atomic<size_t> next_{0};  // the first index that nobody took
  alignas(64) std::atomic<uint64_t> gate_{kClosed};
  alignas(64) std::atomic<uint32_t> generation_{0};  // raised to start a loop
  alignas(64) std::atomic<bool> stop_{false};
  std::atomic<bool> failed_{false};
  std::exception_ptr problem_;  // of who set `failed_`
  std::vector<std::thread> workers_;
};

// How many threads this process may use: the CPUs of its affinity mask, limited by the cgroup's CPU quota.
uint32_t usable_cpus();

}  // namespace quire
