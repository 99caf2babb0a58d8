#pragma once

#include "model/blocks/gqa.h"

namespace quire {

// Gated delta net: a state per head that every token forgets a little of and corrects (DeltaNetParams).
struct DeltaNetSpec {
  uint32_t key_heads = 0;
  uint32_t value_heads = 0;  // a multiple of the key heads
  uint32_t key_dim = 0;      // of one head
  uint32_t value_dim = 0;
  uint32_t span = 4;  // tokens that the convolution sees
  KeyOrder order = KeyOrder::grouped;
  bool gates_together = false;  // beta and alpha are one matrix
  NormSpec norm = {};           // of the result
};

BlockPtr make_block(const DeltaNetSpec& spec, uint32_t dim);

}  // namespace quire
