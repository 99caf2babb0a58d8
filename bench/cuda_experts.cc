#include "cuda_experts.h"

#include <algorithm>
#include <cstdio>
#include <numeric>
#include <random>
#include <vector>

#include "backend/cuda/matmul/experts.h"
#include "backend/cuda/matmul/random_weight.h"
#include "cuda_yardsticks.h"

namespace quire::cuda {
namespace {

constexpr uint32_t kExperts = 128, kUsed = 8, kDim = 2048, kWidth = 768, kLayers = 6;
constexpr uint32_t kMostTokens = 2048;

// Stacks of random experts, every layer's apart; all experts of a stack are the same.
class Stacks {
 public:
  Stacks(DType dtype, uint32_t rows, uint32_t cols, cudaStream_t stream) {
    const WeightShape shape = {format_for(dtype), rows, cols};
    memory_ = DeviceBuffer(shape.bytes() * kExperts * kLayers);
    uint8_t* at = memory_.as<uint8_t>();
    const RandomBlocks source(dtype, rows, cols, 3);
    const PackedWeight first = pack(source.view(), {}, at, stream);
    for (uint32_t i = 1; i < kExperts * kLayers; ++i) {
      CUDA_CHECK(cudaMemcpy(at + i * shape.bytes(), first.data, shape.bytes(), cudaMemcpyDeviceToDevice));
    }
    for (uint32_t layer = 0; layer < kLayers; ++layer) {
      stacks_.push_back(experts_at(shape, kExperts, at + layer * shape.bytes() * kExperts));
    }
  }
  const ExpertStack& operator[](uint32_t layer) const { return stacks_[layer]; }

 private:
  DeviceBuffer memory_;
  std::vector<ExpertStack> stacks_;
};

struct Routing {
  std::vector<uint32_t> experts;  // [layer, token, used]
  uint32_t chosen = 0;            // experts with tokens, over all layers
};

Routing random_routing(uint32_t tokens) {
  Routing routing;
  std::minstd_rand random(5);
  for (uint32_t layer = 0; layer < kLayers; ++layer) {
    std::vector<bool> has(kExperts);
    for (uint32_t token = 0; token < tokens; ++token) {
      uint32_t all[kExperts];
      std::iota(all, all + kExperts, 0u);
      for (uint32_t i = 0; i < kUsed; ++i) {
        std::swap(all[i], all[i + random() % (kExperts - i)]);
        routing.experts.push_back(all[i]);
        has[all[i]] = true;
      }
    }
    routing.chosen += uint32_t(std::count(has.begin(), has.end(), true));
  }
  return routing;
}

void bench_type(DType dtype, double bandwidth, cudaStream_t stream) {
  const Stacks gate_up(dtype, 2 * kWidth, kDim, stream), down(dtype, kDim, kWidth, stream);
  const ExpertWorkspace workspace({{kMostTokens, kUsed, kExperts}, kDim, kWidth});
  DeviceBuffer in(activation_bytes(kMostTokens, kDim)), out(size_t{kMostTokens} * kDim * 4);
  std::vector<float> rows(size_t{kMostTokens} * kDim), shares(size_t{kMostTokens} * kUsed, 0.125f);
  std::minstd_rand random(7);
  for (float& value : rows) value = float(random() % 2001) * 0.001f - 1.0f;
  const DeviceBuffer on_device = DeviceBuffer::of(rows), weights = DeviceBuffer::of(shares);
  for (const uint32_t tokens : {1u, 8u, 32u, 64u, 128u, 512u, 2048u}) {
    const Routing routing = random_routing(tokens);
    const DeviceBuffer experts = DeviceBuffer::of(routing.experts);
    const ActivationBlock block = {in.as<uint8_t>(), tokens, kDim};
    write_activations(on_device.as<float>(), kDim, block, stream);
    const double ms = time_graph(stream, [&] {
      for (uint32_t layer = 0; layer < kLayers; ++layer) {
        DeviceExperts params;
        params.in = block;
        params.experts = experts.as<uint32_t>() + size_t{layer} * tokens * kUsed;
        params.shares = weights.as<float>();
        params.used = kUsed;
        params.gate_up = gate_up[layer];
        params.down = down[layer];
        params.out = {out.as<float>(), tokens, kDim, kDim};
        project_experts(params, workspace, stream);
      }
    });
    const double bytes = double(gate_up[0].shape.bytes() + down[0].shape.bytes()) * routing.chosen;
    const double flops = 2.0 * tokens * kUsed * 3 * kWidth * kDim * kLayers;
    std::printf("%-5s experts, %4u tokens: %7.1f us a layer, %5.1f %% of read, %6.1f TFLOP/s\n",
                traits(dtype).name.data(), tokens, ms * 1e3 / kLayers, 100 * bytes / (ms * 1e-3) / bandwidth,
                flops / ms / 1e9);
    std::fflush(stdout);
  }
}

}  // namespace

void bench_experts(double bandwidth, cudaStream_t stream) {
  for (const DType dtype : {DType::bf16, DType::q8_0, DType::q4_k, DType::mxfp4}) {
    bench_type(dtype, bandwidth, stream);
  }
}

}  // namespace quire::cuda
