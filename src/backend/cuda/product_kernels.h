#pragma once

#include "backend/cuda/products.h"

// The kernels' launchers, each compiled in a file of its own. Outputs are those of product_outputs.h.

namespace quire::cuda {

template <class Output>
struct ProductCall {
  const PackedWeight& weight;
  const ActivationBlock& activations;
  const Output& output;
  const ProductWorkspace& workspace;
  cudaStream_t stream;
};

template <WeightFormat kFormat, class Output>
void launch_plain(const ProductCall<Output>& call);
template <WeightFormat kFormat, class Output>
void launch_stream(const ProductCall<Output>& call);
template <WeightFormat kFormat, class Output>
void launch_tile(const ProductCall<Output>& call);

}  // namespace quire::cuda
