#pragma once

#include <array>
#include <cstddef>
#include <functional>

#include <cuda_runtime_api.h>

#include "backend/cuda/device_memory.h"
#include "backend/cuda/pinned_memory.h"
#include "base/thread_pool.h"

namespace quire::cuda {

// Brings a model file's bytes to the device. The driver copies mapped memory with one thread and waits; here several threads
// fill pinned blocks in turn, and the device takes one while they fill the next. One thread calls it.
class WeightCopies {
 public:
  WeightCopies();
  ~WeightCopies();  // waits until all is there

  // `from` may be let go when this returns; in the stream the bytes are there before what comes next.
  void copy(void* to, const void* from, size_t bytes, cudaStream_t stream);
  // The same of bytes that are made: fill(at, begin, end) writes those from `begin` to `end` of the whole, both multiples of
  // `unit` (or the end), to `at`. Several threads call it. REQUIRES: 0 < unit <= kBlockBytes.
  using Fill = std::function<void(std::byte* at, size_t begin, size_t end)>;
  void copy_made(void* to, size_t bytes, size_t unit, const Fill& fill, cudaStream_t stream);

  static constexpr size_t kBlockBytes = size_t(16) << 20;

 private:
  struct Block {
    PinnedMemory::Block memory;
    Event taken;  // by the device
    bool is_used = false;
  };

  ThreadPool threads_;
  PinnedMemory pinned_;
  std::array<Block, 4> blocks_;
  size_t next_ = 0;
};

}  // namespace quire::cuda
