#pragma once

#include "model/blocks/block.h"

namespace quire {

// Some of many MLPs, chosen for each token by a router.
struct ExpertMlpSpec {
  uint32_t count = 0;
  uint32_t used = 0;
  uint32_t width = 0;  // of one
  bool gated = true;
  uint32_t latent =
      0;  // what they read and write, a product of the input and one that becomes the output; 0: these themselves
  Routing routing = {};
  ShareUse share_use = ShareUse::of_outputs;
  Gate gate = {};
  bool scales_shares = false;  // each expert has a factor of its own
  uint32_t by_token =
      0;  // tokens of a table that says which experts each has, in place of choosing; 0: they are chosen
};

BlockPtr make_block(const ExpertMlpSpec& spec, uint32_t dim);

}  // namespace quire
