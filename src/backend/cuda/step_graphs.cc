#include "backend/cuda/step_graphs.h"

#include "backend/cuda/device_memory.h"

namespace quire::cuda {

StepGraphs::~StepGraphs() {
  for (const auto& [nodes, graph] : graphs_) cudaGraphExecDestroy(graph);
}

void StepGraphs::record() {
  CUDA_CHECK(cudaStreamBeginCapture(stream_, cudaStreamCaptureModeRelaxed));
  recording_ = true;
}

void StepGraphs::forget() {
  if (!recording_) return;
  recording_ = false;
  cudaGraph_t graph = nullptr;
  if (cudaStreamEndCapture(stream_, &graph) == cudaSuccess && graph != nullptr) cudaGraphDestroy(graph);
  cudaGetLastError();  // what was wrong with it has been told
}

void StepGraphs::start() {
  if (!recording_) return;
  recording_ = false;
  cudaGraph_t graph = nullptr;
  CUDA_CHECK(cudaStreamEndCapture(stream_, &graph));
  size_t nodes = 0;
  CUDA_CHECK(cudaGraphGetNodes(graph, nullptr, &nodes));
  const auto found = graphs_.find(nodes);
  cudaGraphExec_t ready = found == graphs_.end() ? nullptr : found->second;
  cudaGraphExecUpdateResultInfo info{};
  if (ready != nullptr && cudaGraphExecUpdate(ready, graph, &info) != cudaSuccess) {
    cudaGetLastError();  // another shape with as many nodes
    cudaGraphExecDestroy(ready);
    graphs_.erase(found);
    ready = nullptr;
  }
  if (ready == nullptr) {
    while (graphs_.size() >= kMostGraphs) {
      cudaGraphExecDestroy(graphs_.begin()->second);
      graphs_.erase(graphs_.begin());
    }
    CUDA_CHECK(cudaGraphInstantiate(&ready, graph, 0));
    graphs_[nodes] = ready;
  }
  cudaGraphDestroy(graph);
  CUDA_CHECK(cudaGraphLaunch(ready, stream_));
}

}  // namespace quire::cuda
