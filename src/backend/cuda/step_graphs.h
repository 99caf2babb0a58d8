#pragma once

#include <cstddef>
#include <map>

#include <cuda_runtime_api.h>

namespace quire::cuda {

// What goes into a stream is recorded and started as one graph, which costs the device less between its kernels. Graphs that were
// made before are used again with other parameters. One thread.
class StepGraphs {
 public:
  explicit StepGraphs(cudaStream_t stream) : stream_(stream) {}
  ~StepGraphs();
  StepGraphs(const StepGraphs&) = delete;
  StepGraphs& operator=(const StepGraphs&) = delete;

  bool is_recording() const { return recording_; }
  // From now on nothing happens until `start`. Nobody may wait for the stream meanwhile.
  void record();
  // Starts what was recorded, if anything was.
  void start();
  // Drops it instead. Never throws.
  void forget();

 private:
  static constexpr size_t kMostGraphs = 16;

  cudaStream_t stream_;
  bool recording_ = false;
  std::map<size_t, cudaGraphExec_t> graphs_;  // by the number of their nodes
};

}  // namespace quire::cuda
