#pragma once

#include "model/blocks/block.h"

namespace quire {

// Some of many gated MLPs, chosen for each token by a router.
struct ExpertMlpSpec {
  uint32_t count = 0;
  uint32_t used = 0;
  uint32_t width = 0;  // of one
  Routing routing = Routing::softmax_then_top_normalized;
  Gate gate = {};
};

BlockPtr make_block(const ExpertMlpSpec& spec, uint32_t dim);

}  // namespace quire
