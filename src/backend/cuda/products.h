#pragma once

#include <cstddef>
#include <cstdint>

#include <cuda.h>
#include <cuda_runtime_api.h>

#include "backend/cuda/activation_layout.h"
#include "backend/cuda/device_memory.h"
#include "backend/cuda/product_outputs.h"
#include "backend/cuda/product_plan.h"
#include "backend/cuda/weight_packing.h"

// Matrix products on the device: weights of weight_layout.h times activations of activation_layout.h. A token's
// result has the same bits whatever tokens are beside it, how many, and which kernel runs.

namespace quire::cuda {

// A weight in memory that someone else owns.
struct PackedWeight {
  WeightShape shape;
  const uint8_t* data = nullptr;
  CUtensorMap map = {};  // of its blocks, for Hopper's copies
};

// Activations of a step in memory that someone else owns, activation_bytes(tokens, cols) of it.
struct ActivationBlock {
  uint8_t* data = nullptr;
  uint32_t tokens = 0;
  uint32_t cols = 0;
};

// What products of one stream share. Large enough for every product up to the limits it was made for.
class ProductWorkspace {
 public:
  struct Limits {
    uint32_t rows;    // of the largest weight
    uint32_t tokens;  // of the largest step
  };
  explicit ProductWorkspace(const Limits& limits);

  const DeviceTraits& device() const { return device_; }
  float4* sums() const { return sums_.as<float4>(); }
  size_t sums_bytes() const { return sums_.bytes(); }
  uint32_t* counters() const { return counters_.as<uint32_t>(); }
  float* scales() const { return scales_.as<float>(); }

 private:
  DeviceTraits device_;
  DeviceBuffer sums_;
  DeviceBuffer counters_;  // zero between products
  DeviceBuffer scales_;    // [tokens]
};

// Writes a weight to `destination`, packed_shape(source, order).bytes() of device memory aligned to 256. Waits for
// it. Throws Error where the device fails.
PackedWeight pack(const MatrixView& source, const RowOrder& order, uint8_t* destination, cudaStream_t stream);

// The weight that was packed there before.
PackedWeight packed_at(const WeightShape& shape, const uint8_t* data);

// bf16 of f32 rows [tokens, cols], a row every `stride` numbers, as activations. The padding becomes zero.
void write_activations(const float* rows, size_t stride, const ActivationBlock& block, cudaStream_t stream);

// Starts output = weight * activations. REQUIRES: the columns agree, tokens > 0, the workspace's limits hold.
template <class Output>
void product(const PackedWeight& weight, const ActivationBlock& activations, const Output& output,
             const ProductWorkspace& workspace, cudaStream_t stream);

// The same with a kernel of the caller's choice. REQUIRES: it can (stream: kStreamTokens at most; Hopper).
template <class Output>
void product_by(ProductKernel kernel, const PackedWeight& weight, const ActivationBlock& activations,
                const Output& output, const ProductWorkspace& workspace, cudaStream_t stream);

}  // namespace quire::cuda
