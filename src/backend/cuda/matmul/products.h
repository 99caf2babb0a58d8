#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include <cuda.h>
#include <cuda_runtime_api.h>

#include "backend/cuda/device_memory.h"
#include "backend/cuda/matmul/activation_layout.h"
#include "backend/cuda/matmul/product_outputs.h"
#include "backend/cuda/matmul/product_plan.h"
#include "backend/cuda/matmul/weight_packing.h"

// Matrix products on the device: weights of weight_layout.h times activations of activation_layout.h. A token's
// result has the same bits whatever tokens are beside it, how many, and which kernel runs.
//
// Order of kernels. On sm_90 and later every product is launched so that it may start while the kernel before it in its
// stream still runs, whatever that kernel is (programmatic dependent launch). Until that one has ended, and with it all
// before, a product reads nothing but its weight, and writes nothing; so weights must have been written before the
// stream's last kernels began, as pack sees to, and all else may come from the kernel just before. A product lets the
// kernel after it start at once: if that is launched with Overlap::with_kernel_before, it must wait
// (ptx::wait_for_kernel_before) before it touches anything that others write. Kernels launched plainly wait for all.

namespace quire::cuda {

class WeightCopies;

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

// Device memory through which sources come to the device piece by piece: a row at least, of bf16 where the device does
// not read the type.
struct PackStaging {
  uint8_t* data = nullptr;  // aligned to 16
  size_t bytes = 0;
  WeightCopies* copies = nullptr;  // who brings them; null: the driver, and sources may be on the device
};

// Writes a weight to `destination`, packed_shape(sources, order).bytes() of device memory aligned to 256: the rows of
// all sources one after the other, or those that `order` names. Sources are in the host's memory or the device's. Waits
// for it. Throws Error where the device fails.
PackedWeight pack(std::span<const MatrixView> sources, const RowOrder& order, const PackStaging& staging,
                  uint8_t* destination, cudaStream_t stream);

// The same of one source, with a staging of its own.
PackedWeight pack(const MatrixView& source, const RowOrder& order, uint8_t* destination, cudaStream_t stream);

// The weight that was packed there before.
PackedWeight packed_at(const WeightShape& shape, const uint8_t* data);

// bf16 of f32 rows [tokens, cols], a row every `stride` numbers, as activations. The padding becomes zero.
void write_activations(const float* rows, size_t stride, const ActivationBlock& block, cudaStream_t stream);

// Starts output = weight * activations. REQUIRES: the columns agree, tokens > 0, the workspace's limits hold. `Output`
// is one of product_outputs.h.
template <class Output>
void product(const PackedWeight& weight, const ActivationBlock& activations, const Output& output,
             const ProductWorkspace& workspace, cudaStream_t stream);

// The same with a kernel of the caller's choice. REQUIRES: it can (stream: kStreamTokens at most; Hopper).
template <class Output>
void product_by(ProductKernel kernel, const PackedWeight& weight, const ActivationBlock& activations,
                const Output& output, const ProductWorkspace& workspace, cudaStream_t stream);

}  // namespace quire::cuda
