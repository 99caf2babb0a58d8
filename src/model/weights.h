#pragma once

#include <memory>
#include <vector>

#include "backend/backend.h"
#include "model/model_file.h"
#include "model/model_spec.h"

namespace quire {

// One layer's weights. Those a model does not have are empty.
struct LayerWeights {
  Norm attention_norm, attention_post_norm;
  Norm mlp_norm, mlp_post_norm;
  Norm query_norm, key_norm;
  Weight query, key, value, attention_out;  // [out, in]
  Weight query_bias, key_bias, value_bias, attention_out_bias;
  Weight sinks;           // [heads]
  Weight gate, up, down;  // of experts: [experts * out, in]
  Weight gate_bias, up_bias, down_bias;
  Weight router, router_bias;
};

struct Weights {
  Weight embedding;  // [vocab, dim]
  Weight positions;  // [context, dim]
  Weight head;       // [vocab, dim]; the embedding where they are tied
  Weight head_bias;
  Norm output_norm;
  std::vector<LayerWeights> layers;
  size_t bytes = 0;  // in the file, tied tensors once
  size_t packed_bytes =
      0;  // of copies in the backend's own layout, beside which the originals need no memory
  std::shared_ptr<const ModelFile> file;
};

// Finds every tensor the spec calls for and checks its shape before loading any; the first that is missing or
// wrong throws Error naming it. Weights refer to the file's mapping, which they keep alive.
Weights load_weights(std::shared_ptr<const ModelFile> file, const ModelSpec& spec);

// Puts the weights of all products into the layout that the backend's kernels want. The originals of what was copied
// are let go: pages of the mapped file are forgotten, converted copies freed.
void prepare_weights(Weights& weights, const ModelSpec& spec, Backend& backend);

}  // namespace quire
