#pragma once

#include <string>

#include "model/model_file.h"
#include "model/model_spec.h"

namespace quire {

// Why so many ranks cannot divide a model, told from the head of its file: a sentence for a person, or nothing.
std::string why_undivided(const ModelFile& file, const ModelSpec& spec, uint32_t ranks);

// Makes it the part of one rank: of every product some rows, of attention some KV heads and the query heads that are theirs, of experts some. Whatever is
// made of whole rows (norms, sums, the embedding) all ranks make. REQUIRES: nothing speaks against it.
void divide(ModelSpec& spec, RankPlace place);

// What ranks hand each other for one token, in f32: what each receives of the others, and rank 0 of its logits. And how often.
struct GatherCost {
  uint32_t gathers = 0;
  double bytes = 0;        // for each token that is computed; of the rank that receives most
  double logit_bytes = 0;  // for each row of logits, rank 0's
};
GatherCost gather_cost(const ModelSpec& spec, uint32_t ranks);

}  // namespace quire
