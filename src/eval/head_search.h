#pragma once

#include <functional>

#include "eval/evaluator_heads.h"
#include "eval/house_data.h"

namespace quire {

struct HeadSearch {
  uint32_t tokens = 1024;  // of a prompt; fewer where the model's context is smaller
  uint32_t prompts = 16;   // whose facts are looked at
  uint32_t window = 32;    // the last tokens of a prompt, which look
  uint32_t layers = 5;     // the best so many are tried
  uint32_t cases = 50;     // other facts, which are asked to try them
};

// How much of the work of a prompt is saved if the tokens that stay are chosen by the first layers, `layer` the last of them.
double saved_at_half(uint32_t layer, size_t layers);

// The heads of one layer that look at facts among other texts, and keep what the model needs to answer. All layers that see the
// whole prompt are searched: their best heads are a quarter of each. The layers that look most are tried; chosen is the earliest that
// keeps enough answers at half both ways, else the earliest that does after a whole prefill, else the one that keeps most. Throws Error
// if no layer sees everything. `progress` is told how much of its work is done.
FoundHeads find_evaluator_heads(const LoadedModel& model, const HouseData& data, const HeadSearch& search,
                                const std::function<void(size_t done, size_t of)>& progress = {});

}  // namespace quire
