#pragma once

#include <algorithm>
#include <memory>
#include <string>
#include <vector>

#include "backend/backend.h"
#include "model/layer_blocks.h"
#include "model/model_file.h"

namespace quire {

// A block with its weights and norms.
struct BlockWeights {
  uint32_t layer = 0;
  BlockPtr block;
  std::vector<Role> roles;
  std::vector<Weight> weights;  // by role; empty where the spec or the file has none
  BlockInput input = BlockInput::stream;
  Norm norm, post_norm;  // of no kind where there is none
  float residual_scale = 1;
  float stream_scale = 1;
  Side side = Side::device;  // who has them, and computes
  size_t first_stream = 0;   // of its layer's that are its own
};

struct Weights {
  Weight embedding;     // [vocab, dim]
  Weight positions;     // [context, dim]
  Norm embedding_norm;  // of no kind where there is none
  // Of a model that reads something for each of its layers.
  Weight layer_table;       // [vocab, layers * width]
  Weight layer_projection;  // [layers * width, dim]
  Norm layer_norm;          // of the width
  // Of a model of several streams, for each but the first: what it begins with, and what it ends with. [dim, dim]
  std::vector<Weight> streams_in, streams_out;
  // Of a model of hyper-connections, before its head: [count, count * dim], [1], [count].
  Weight connection, connection_scale, connection_base;
  // Of a model that joins.
  Weight join;  // [dim, 2 * dim]
  Norm token_norm, result_norm;
  Weight head;  // [vocab, dim]; the embedding where they are tied
  Weight head_bias;
  Norm output_norm;
  std::vector<BlockWeights> blocks;  // in the order in which they are computed
  size_t bytes = 0;                  // in the file, tied tensors once
  size_t packed_bytes =
      0;  // of copies in the backend's own layout, beside which the originals need no memory
  size_t device_bytes = 0;  // those of them that are in a device's memory
  std::shared_ptr<const ModelFile> file;
  std::vector<std::string> losses = {};  // what loading rounded, as sentences

  // Who begins: it reads the embedding. The head is always the device's.
  Side first_side() const { return blocks.empty() ? Side::device : blocks.front().side; }
  Side last_side() const { return blocks.empty() ? Side::device : blocks.back().side; }
  bool has_any_on(Side side) const {
    return std::ranges::any_of(blocks, [side](const BlockWeights& block) { return block.side == side; });
  }
};

// Finds every tensor the spec calls for and checks its shape before loading any; the first that is missing or
// wrong throws Error naming it. Weights refer to the file's mapping, which they keep alive. They are for a backend with these traits.
Weights load_weights(std::shared_ptr<const ModelFile> file, const ModelSpec& spec,
                     const BackendTraits& traits = {});

// Puts the weights of all products into the layout that the kernels of their side of the backend want. The originals of what was copied
// are let go: pages of the mapped file are forgotten, converted copies freed.
void prepare_weights(Weights& weights, Backend& backend);

}  // namespace quire
