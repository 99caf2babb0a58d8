#pragma once

#include "backend/cuda/matmul/products.h"
#include "backend/cuda/matmul/token_scales.h"

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

// Scales of the tokens in the workspace, written by a kernel that this starts; null where the output has none.
template <class Output>
const float* prepare_scales(const ProductCall<Output>& call) {
  const TokenScales* scales = scales_of(call.output);
  if (scales == nullptr) return nullptr;
  write_token_scales(*scales, call.activations.tokens, call.workspace.scales(), call.workspace.device(),
                     call.stream);
  return call.workspace.scales();
}

template <WeightFormat kFormat, class Output>
void launch_plain(const ProductCall<Output>& call);
template <WeightFormat kFormat, class Output>
void launch_stream(const ProductCall<Output>& call);
template <WeightFormat kFormat, class Output>
void launch_tile(const ProductCall<Output>& call);

}  // namespace quire::cuda
