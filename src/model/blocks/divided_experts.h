#pragma once

#include "model/blocks/expert_mlp.h"
#include "ranks/row_share.h"

namespace quire {

// The same experts where ranks divide a model: each has some of them whole. All ranks choose, each computes what its own experts make of the
// tokens that chose them, all of that is gathered, and everybody adds it up token by token in the order of the choice, as one process
// does. REQUIRES: experts that read the block's input (no latent).
BlockPtr make_divided_experts(const ExpertMlpSpec& spec, uint32_t dim, RankPlace place);

}  // namespace quire
