#pragma once

#include "model/blocks/gqa.h"

namespace quire {

// Mamba-2: a state per head, which every token lets decay and adds to (StateSpaceParams).
struct StateSpaceSpec {
  uint32_t heads = 0;
  uint32_t head_dim = 0;
  uint32_t groups = 1;  // of heads that share what is written and asked, and of norms
  uint32_t state_dim = 0;
  uint32_t span = 4;     // tokens that the convolution sees
  bool has_norm = true;  // of the result, group by group
  NormSpec norm = {};
};

// Mamba-1: every channel has a state and a pace of its own (SelectiveScanParams).
struct SelectiveScanSpec {
  uint32_t width = 0;
  uint32_t state_dim = 0;
  uint32_t rank = 0;       // of what paces are made of
  uint32_t span = 4;       // tokens that the convolution sees
  bool has_norms = false;  // of what paces are made of, of what is written and of what is asked
  NormSpec norm = {};
};

BlockPtr make_block(const StateSpaceSpec& spec, uint32_t dim);
BlockPtr make_block(const SelectiveScanSpec& spec, uint32_t dim);

}  // namespace quire
