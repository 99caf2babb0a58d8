#pragma once

#include "model/blocks/block.h"

namespace quire {

// down(gate(x) * up(x)), or down(gate(x)) where it is not gated.
struct DenseMlpSpec {
  uint32_t width = 0;
  bool gated = true;
  Gate gate = {};
};

BlockPtr make_block(const DenseMlpSpec& spec, uint32_t dim);

}  // namespace quire
