#pragma once

#include "model/blocks/dense_mlp.h"
#include "model/blocks/expert_mlp.h"
#include "model/blocks/gqa.h"

namespace quire {

// An MLP and experts side by side, each with norms of its own before and after, whose sum is added: the router has a norm of its
// own too. Reads the stream as it is.
struct ParallelMlpSpec {
  DenseMlpSpec dense = {};
  ExpertMlpSpec experts = {};
  NormSpec norm = {};  // all of them
};

BlockPtr make_block(const ParallelMlpSpec& spec, uint32_t dim);

}  // namespace quire
