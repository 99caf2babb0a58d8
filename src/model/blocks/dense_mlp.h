#pragma once

#include <optional>
#include <string>

#include "model/blocks/block.h"

namespace quire {

// down(gate(x) * up(x)), or down(gate(x)) where it is not gated.
struct DenseMlpSpec {
  uint32_t width = 0;
  bool gated = true;
  Gate gate = {};
  // Of a gate only what is so many standard deviations above the mean of its row comes through.
  std::optional<float> spread = {};
  std::string suffix = {};    // of its tensors' names: "_shexp" of experts that every token takes part in
  bool gated_output = false;  // all of it times the sigmoid of one more product
  RankPlace place = {};       // who computes which of its rows
};

BlockPtr make_block(const DenseMlpSpec& spec, uint32_t dim);

}  // namespace quire
