// Products of an 8 B model on the current GPU: decode steps as a share of the bandwidth with which memory can be read,
// prefill in TFLOP/s, with cuBLASLt beside it where its library is found (QUIRE_CUBLASLT names it), a mixture's experts,
// and what becomes of the results. Words after the program's name choose: decode, prefill, experts, outputs.

#include <algorithm>
#include <cstdio>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "backend/cuda/matmul/products.h"
#include "backend/cuda/matmul/random_weight.h"
#include "base/error.h"
#include "cuda_experts.h"
#include "cuda_outputs.h"
#include "cuda_yardsticks.h"

namespace quire::cuda {
namespace {

constexpr DType kTypes[] = {DType::bf16, DType::q8_0, DType::q4_0, DType::q4_k, DType::q6_k, DType::mxfp4};
constexpr uint32_t kLayers = 32;

struct Matrix {
  const char* name;
  uint32_t rows, cols, count;
};
constexpr Matrix kMatrices[] = {{"qkv", 6144, 4096, kLayers},
                                {"o", 4096, 4096, kLayers},
                                {"gate+up", 28672, 4096, kLayers},
                                {"down", 4096, 14336, kLayers},
                                {"head", 128256, 4096, 1}};
constexpr size_t kLayerMatrices = 4;
constexpr uint32_t kMostTokens = 3072;

// The weights of a model in one format, every layer's apart so that no cache holds them.
class Model {
 public:
  explicit Model(DType dtype, cudaStream_t stream) {
    size_t bytes = 0;
    for (const Matrix& matrix : kMatrices) bytes += shape_of(dtype, matrix).bytes() * matrix.count;
    memory_ = DeviceBuffer(bytes);
    uint8_t* at = memory_.as<uint8_t>();
    for (const Matrix& matrix : kMatrices) {
      const WeightShape shape = shape_of(dtype, matrix);
      std::vector<PackedWeight> weights;
      for (uint32_t layer = 0; layer < matrix.count; ++layer, at += shape.bytes()) {
        if (layer == 0) {
          const RandomBlocks source(dtype, matrix.rows, matrix.cols, 3);
          weights.push_back(pack(source.view(), {}, at, stream));
        } else {
          CUDA_CHECK(cudaMemcpy(at, weights[0].data, shape.bytes(), cudaMemcpyDeviceToDevice));
          weights.push_back(packed_at(shape, at));
        }
      }
      weights_.push_back(weights);
    }
    CUDA_CHECK(cudaDeviceSynchronize());
  }

  const PackedWeight& weight(size_t matrix, uint32_t layer) const { return weights_[matrix][layer]; }
  size_t bytes() const { return memory_.bytes(); }
  const DeviceBuffer& memory() const { return memory_; }

 private:
  static WeightShape shape_of(DType dtype, const Matrix& matrix) {
    return {format_for(dtype), matrix.rows, matrix.cols};
  }

  DeviceBuffer memory_;
  std::vector<std::vector<PackedWeight>> weights_;
};

class Bench {
 public:
  Bench()
      : workspace_({128256, kMostTokens}),
        activations_(activation_bytes(kMostTokens, 14336)),
        out_(std::max<size_t>(size_t{kMostTokens} * 28672, size_t{64} * 128256) * 4) {
    std::vector<float> rows(size_t{kMostTokens} * 4096);
    uint32_t random = 1;
    for (float& value : rows) value = float((random = random * 1664525 + 1013904223) >> 8) * 0x1p-23f - 1.0f;
    const DeviceBuffer uploaded = DeviceBuffer::of(rows);
    // Wide matrices read the same numbers again; for time only their kind matters.
    write_activations(uploaded.as<float>(), 768, {activations_.as<uint8_t>(), kMostTokens, 14336},
                      stream_.get());
    stream_.wait();
  }

  // Some of "decode", "prefill", "experts", "outputs", or all.
  void run(const std::vector<std::string>& parts) {
    const auto wanted = [&](const char* part) {
      return parts.empty() || std::find(parts.begin(), parts.end(), part) != parts.end();
    };
    if (wanted("outputs")) bench_outputs();
    for (const DType dtype : kTypes) {
      if (!wanted("decode") && !wanted("prefill") && !(wanted("experts") && dtype == DType::bf16)) continue;
      std::optional<Model> model(std::in_place, dtype, stream_.get());
      if (dtype == DType::bf16) {
        bandwidth_ = read_bandwidth(model->memory(), stream_.get());
        std::printf("read bandwidth %.3f TB/s over %.1f GB, %d multiprocessors\n", bandwidth_ / 1e12,
                    double(model->bytes()) / 1e9, multiprocessors());
      }
      for (const uint32_t tokens : {1u, 2u, 4u, 8u, 16u, 32u, 64u}) {
        if (wanted("decode")) decode(*model, dtype, tokens);
      }
      if (wanted("prefill")) prefill(*model, dtype);
    }
    if (wanted("experts")) bench_experts(bandwidth_, stream_.get());
    if (wanted("prefill")) yardstick();
  }

 private:
  void start(const PackedWeight& weight, uint32_t tokens) {
    product(weight, {activations_.as<uint8_t>(), tokens, weight.shape.cols},
            StoreRows{out_.as<float>(), weight.shape.rows, nullptr}, workspace_, stream_.get());
  }

  // All matrices of a kind, or of the model (kMatrices' end), in the order of a step.
  double graph_ms(const Model& model, uint32_t tokens, size_t only) {
    return time_graph(stream_.get(), [&] {
      for (uint32_t layer = 0; layer <= kLayers; ++layer) {
        for (size_t m = 0; m < std::size(kMatrices); ++m) {
          const bool of_layer = kMatrices[m].count == 1 ? layer == kLayers : layer < kLayers;
          if (of_layer && (only == m || only == std::size(kMatrices))) {
            start(model.weight(m, kMatrices[m].count == 1 ? 0 : layer), tokens);
          }
        }
      }
    });
  }

  void decode(const Model& model, DType dtype, uint32_t tokens) {
    const double ms = graph_ms(model, tokens, std::size(kMatrices));
    std::printf("%-5s %4u tokens: 129 products %7.3f ms, %5.1f %% of read;", traits(dtype).name.data(),
                tokens, ms, 100 * double(model.bytes()) / (ms * 1e-3) / bandwidth_);
    if (tokens == 1 || tokens == 16 || tokens == 64) {
      for (size_t m = 0; m < std::size(kMatrices); ++m) {
        const double us = graph_ms(model, tokens, m) * 1e3 / kMatrices[m].count;
        std::printf(" %s %.1f us (%.0f %%)", kMatrices[m].name, us,
                    100 * double(model.weight(m, 0).shape.bytes()) / (us * 1e-6) / bandwidth_);
      }
    }
    std::printf("\n");
    std::fflush(stdout);
  }

  static double flops(const Matrix& matrix, uint32_t tokens) {
    return 2.0 * matrix.rows * matrix.cols * tokens;
  }

  void prefill(const Model& model, DType dtype) {
    for (const uint32_t tokens : {128u, 512u, 1536u, 2048u, 3072u}) {
      double total_ms = 0, total_flops = 0;
      std::printf("%-5s %4u tokens, TFLOP/s:", traits(dtype).name.data(), tokens);
      for (size_t m = 0; m < kLayerMatrices; ++m) {
        uint32_t layer = 0;
        const double ms =
            time_median(stream_.get(), [&] { start(model.weight(m, layer++ % kLayers), tokens); });
        std::printf(" %s %.0f", kMatrices[m].name, flops(kMatrices[m], tokens) / ms / 1e9);
        total_ms += ms;
        total_flops += flops(kMatrices[m], tokens);
      }
      std::printf("; layer %.0f\n", total_flops / total_ms / 1e9);
      std::fflush(stdout);
    }
  }

  void yardstick() {
    std::optional<CublasLt> library = CublasLt::find();
    if (!library) {
      std::printf("cuBLASLt was not found\n");
      return;
    }
    // Random numbers as for ours: a product of equal ones takes less power, and so less time.
    const RandomBlocks source(DType::bf16, 28672, 4096, 3);
    DeviceBuffer weight(source.view().bytes());
    weight.upload(source.view().data, source.view().bytes());
    for (const uint32_t tokens : {64u, 512u, 1536u, 2048u, 3072u}) {
      double total_ms = 0, total_flops = 0;
      for (size_t m = 0; m < kLayerMatrices; ++m) {
        const Matrix& matrix = kMatrices[m];
        total_ms += library->best_ms({matrix.rows, tokens, matrix.cols}, weight.data(), activations_.data(),
                                     out_.data(), stream_.get());
        total_flops += flops(matrix, tokens);
      }
      std::printf("cuBLASLt bf16, %u tokens, TFLOP/s: layer %.0f\n", tokens, total_flops / total_ms / 1e9);
      std::fflush(stdout);
    }
  }

  Stream stream_;
  ProductWorkspace workspace_;
  DeviceBuffer activations_;
  DeviceBuffer out_;
  double bandwidth_ = 0;
};

}  // namespace
}  // namespace quire::cuda

int main(int argc, char** argv) {
  if (!quire::cuda::has_device()) {
    std::printf("this machine has no CUDA device\n");
    return 0;
  }
  try {
    quire::cuda::Bench().run({argv + 1, argv + argc});
  } catch (const quire::Error& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return 1;
  }
  return 0;
}
