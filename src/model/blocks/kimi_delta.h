#pragma once

#include "model/blocks/gqa.h"

namespace quire {

// Kimi delta attention: a gated delta net in which every key forgets at a pace of its own.
struct KimiDeltaSpec {
  uint32_t heads = 0;
  uint32_t head_dim = 0;  // of keys and of values
  uint32_t span = 4;      // tokens that the convolutions see
  NormSpec norm = {};     // of the result
};

BlockPtr make_block(const KimiDeltaSpec& spec, uint32_t dim);

}  // namespace quire
