#include "cuda_outputs.h"

#include <cstdio>
#include <vector>

#include "backend/cuda/matmul/output_rows.h"
#include "backend/cuda/matmul/products.h"
#include "backend/cuda/matmul/random_weight.h"
#include "cuda_yardsticks.h"

namespace quire::cuda {
namespace {

constexpr uint32_t kCopies = 6;  // of each weight, so that no cache holds them
constexpr uint32_t kMostTokens = 2048, kDim = 4096, kHidden = 14336, kQkv = 6144;

class OutputBench {
 public:
  explicit OutputBench(DType dtype)
      : workspace_({2 * kHidden, kMostTokens}),
        activations_(activation_bytes(kMostTokens, kHidden)),
        rows_(size_t{kMostTokens} * 2 * kHidden * 4),
        residual_(size_t{kMostTokens} * kDim * 4),
        next_(activation_bytes(kMostTokens, kHidden)),
        squares_(size_t{kMostTokens} * (kDim / 16) * 4),
        gain_(kDim * 4) {
    std::vector<float> numbers(size_t{kMostTokens} * 4096);
    uint32_t random = 1;
    for (float& number : numbers)
      number = float((random = random * 1664525 + 1013904223) >> 8) * 0x1p-23f - 1.0f;
    const DeviceBuffer uploaded = DeviceBuffer::of(numbers);
    write_activations(uploaded.as<float>(), 768, {activations_.as<uint8_t>(), kMostTokens, kHidden},
                      stream_.get());
    residual_.fill(0x3c);
    squares_.fill(0x3c);
    gain_.fill(0x3c);
    make(dtype, kQkv, kDim, qkv_);
    make(dtype, 2 * kHidden, kDim, gate_up_);
    make(dtype, kDim, kDim, attended_);
    make(dtype, kDim, kHidden, down_);
  }

  void run(const char* name) {
    for (const uint32_t tokens : {16u, 64u, 256u, 2048u}) {
      // So large an epsilon makes gates small: powers that overflow take longer, and in models none do.
      const TokenScales scales = {squares_.as<float>(), kDim / 16, kDim, 1e8f};
      StoreParts parts;
      parts.scales = scales;
      parts.parts[0] = {rows_.as<float>(), kQkv, nullptr, 4096};
      parts.parts[1] = {rows_.as<float>() + 4096, kQkv, nullptr, 1024};
      parts.parts[2] = {rows_.as<float>() + 5120, kQkv, nullptr, 1024};
      const GatedUnit gated = {scales, {next_.as<uint8_t>(), tokens, kHidden}};
      const AddToResidual residual = {residual_.as<float>(), kDim,
                                      gain_.as<float>(),     {next_.as<uint8_t>(), tokens, kDim},
                                      squares_.as<float>(),  kDim / 16};
      std::printf("%-5s %4u tokens, us: qkv rows %.1f parts %.1f", name, tokens, stored(qkv_, tokens),
                  fused(qkv_, tokens, parts));
      std::printf("; gate+up rows %.1f gated %.1f", stored(gate_up_, tokens), fused(gate_up_, tokens, gated));
      print("o", attended_, tokens, residual);
      print("down", down_, tokens, residual);
      std::printf("\n");
      std::fflush(stdout);
    }
  }

 private:
  struct Copies {
    DeviceBuffer memory;
    std::vector<PackedWeight> weights;
  };

  void make(DType dtype, uint32_t rows, uint32_t cols, Copies& copies) {
    const RandomBlocks source(dtype, rows, cols, 3);
    const size_t bytes = packed_shape(source.view(), {}).bytes();
    copies.memory = DeviceBuffer(bytes * kCopies);
    auto* at = copies.memory.as<uint8_t>();
    copies.weights.push_back(pack(source.view(), {}, at, stream_.get()));
    for (uint32_t i = 1; i < kCopies; ++i) {
      CUDA_CHECK(cudaMemcpy(at + i * bytes, at, bytes, cudaMemcpyDeviceToDevice));
      copies.weights.push_back(packed_at(copies.weights[0].shape, at + i * bytes));
    }
  }

  void print(const char* matrix, const Copies& copies, uint32_t tokens, const AddToResidual& output) {
    std::printf("; %s rows %.1f residual %.1f by a second kernel %.1f", matrix, stored(copies, tokens),
                fused(copies, tokens, output), finished_after(copies, tokens, output));
  }

  // Microseconds of one of the copies.
  template <class Start>
  double time(const Copies& copies, const Start& start) {
    return time_graph(stream_.get(),
                      [&] {
                        for (const PackedWeight& weight : copies.weights) start(weight);
                      }) *
           1e3 / kCopies;
  }

  template <class Output>
  double fused(const Copies& copies, uint32_t tokens, const Output& output) {
    return time(copies, [&](const PackedWeight& weight) {
      product(weight, {activations_.as<uint8_t>(), tokens, weight.shape.cols}, output, workspace_,
              stream_.get());
    });
  }

  double stored(const Copies& copies, uint32_t tokens) {
    return fused(copies, tokens, StoreRows{rows_.as<float>(), copies.weights[0].shape.rows, nullptr});
  }

  double finished_after(const Copies& copies, uint32_t tokens, const AddToResidual& output) {
    const uint32_t rows = copies.weights[0].shape.rows;
    return time(copies, [&](const PackedWeight& weight) {
      product(weight, {activations_.as<uint8_t>(), tokens, weight.shape.cols},
              StoreRows{rows_.as<float>(), rows, nullptr}, workspace_, stream_.get());
      output_rows({rows_.as<float>(), tokens, rows, rows}, output, workspace_, stream_.get());
    });
  }

  Stream stream_;
  ProductWorkspace workspace_;
  DeviceBuffer activations_, rows_, residual_, next_, squares_, gain_;
  Copies qkv_, gate_up_, attended_, down_;
};

}  // namespace

void bench_outputs() {
  for (const DType dtype : {DType::bf16, DType::q8_0, DType::q4_0, DType::q4_k}) {
    OutputBench(dtype).run(traits(dtype).name.data());
  }
}

}  // namespace quire::cuda
