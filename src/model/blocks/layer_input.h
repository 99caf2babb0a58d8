#pragma once

#include "model/blocks/block.h"

namespace quire {

// down(gate(up(x)) * input): what the model has read for this layer (LayerInputs) comes into the stream. Reads the stream as it is.
struct LayerInputSpec {
  uint32_t width = 0;
  Gate gate = {};
};

BlockPtr make_block(const LayerInputSpec& spec, uint32_t dim);

}  // namespace quire
