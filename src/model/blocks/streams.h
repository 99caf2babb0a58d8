#pragma once

#include "model/blocks/gqa.h"
#include "model/blocks/layer_input.h"

namespace quire {

// Streams side by side (AltUp): beside the residual stream there are others, which no layer's mixer or MLP reads. Before a layer all
// of them are foretold from each other, and after it corrected by how far the first came out otherwise.
struct StreamsSpec {
  uint32_t count = 0;  // with the residual stream
  NormSpec norm = {};
  LayerInputSpec input = {};  // what the model has read for the layer goes to the others alone
};

// What a layer begins and ends with. Both read the stream as it is.
BlockPtr make_predict_block(const StreamsSpec& spec, uint32_t dim);
BlockPtr make_correct_block(const StreamsSpec& spec, uint32_t dim);

// x + norm(right(left(x))) of the rows that the mixer reads (LAuReL).
struct LowRankSpec {
  uint32_t rank = 0;
  NormSpec norm = {};
};

BlockPtr make_block(const LowRankSpec& spec, uint32_t dim);

}  // namespace quire
