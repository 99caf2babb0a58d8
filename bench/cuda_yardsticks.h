#pragma once

#include <algorithm>
#include <functional>
#include <memory>
#include <optional>
#include <vector>

#include <cuda_runtime_api.h>

#include "backend/cuda/device_memory.h"

namespace quire::cuda {

// Milliseconds of what `start` puts into the stream: the median of several, after two that do not count.
template <class Start>
double time_median(cudaStream_t stream, const Start& start) {
  const Event before, after;
  std::vector<float> ms;
  for (int i = 0; i < 9; ++i) {
    before.record(stream);
    start();
    after.record(stream);
    after.wait();
    if (i >= 2) ms.push_back(after.ms_since(before));
  }
  std::nth_element(ms.begin(), ms.begin() + ms.size() / 2, ms.end());
  return ms[ms.size() / 2];
}

// The same for a graph of what `record` puts into the stream.
template <class Record>
double time_graph(cudaStream_t stream, const Record& record) {
  cudaGraph_t graph;
  cudaGraphExec_t instance;
  CUDA_CHECK(cudaStreamBeginCapture(stream, cudaStreamCaptureModeRelaxed));
  record();
  CUDA_CHECK(cudaStreamEndCapture(stream, &graph));
  CUDA_CHECK(cudaGraphInstantiate(&instance, graph, 0));
  const double ms = time_median(stream, [&] { CUDA_CHECK(cudaGraphLaunch(instance, stream)); });
  CUDA_CHECK(cudaStreamSynchronize(stream));
  cudaGraphExecDestroy(instance);
  cudaGraphDestroy(graph);
  return ms;
}

// Bytes a second of a kernel that only reads.
double read_bandwidth(const DeviceBuffer& memory, cudaStream_t stream);

// NVIDIA's own products, from a library that is loaded if it is there: a yardstick, no part of quire.
class CublasLt {
 public:
  struct Shape {
    uint32_t rows, tokens, cols;
  };

  static std::optional<CublasLt> find();

  // The best of the algorithms that it proposes; weights [rows, cols], activations [tokens, cols], out [tokens, rows],
  // all bf16.
  double best_ms(const Shape& shape, const void* weight, const void* activations, void* out,
                 cudaStream_t stream);

 private:
  struct Library;
  explicit CublasLt(std::shared_ptr<Library> library) : library_(std::move(library)) {}
  std::shared_ptr<Library> library_;
};

}  // namespace quire::cuda
