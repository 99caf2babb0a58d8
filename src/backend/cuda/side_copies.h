#pragma once

#include <cstdint>
#include <deque>
#include <optional>
#include <span>
#include <vector>

#include <cuda_runtime_api.h>

#include "backend/backend.h"
#include "backend/cuda/device_memory.h"

namespace quire::cuda {

// Copies between the device and pinned memory in a stream of their own, beside the kernels: the bus is busy while they compute.
// One thread.
class SideCopies {
 public:
  SideCopies() = default;
  ~SideCopies();
  SideCopies(const SideCopies&) = delete;
  SideCopies& operator=(const SideCopies&) = delete;

  // After all that is in `main` now, and all copies before. Throws Error if the device refuses them.
  uint64_t start(std::span<const ByteCopy> copies, cudaStream_t main);
  // What is put into `main` from now on waits for the copies up to there, without the host.
  void order_after(uint64_t mark, cudaStream_t main) const;
  // How long the copies took; nothing: they have not happened.
  std::optional<double> seconds(uint64_t mark);
  void wait(uint64_t mark) const;

  // Pinned memory. Throws Error with a sentence if the system does not give so much.
  static Buffer allocate(size_t bytes);

 private:
  struct Batch {
    uint64_t mark = 0;
    cudaEvent_t begin = nullptr, end = nullptr;
  };
  void enqueue(std::span<const ByteCopy> copies, const Batch& batch, cudaStream_t main) const;
  const Batch* find(uint64_t mark) const;  // null: it was told to have happened
  cudaEvent_t take_event();

  Stream stream_;
  uint64_t asked_ = 0;
  std::deque<Batch> batches_;        // that nobody was told of, the oldest first
  std::vector<cudaEvent_t> events_;  // to be used again
};

}  // namespace quire::cuda
