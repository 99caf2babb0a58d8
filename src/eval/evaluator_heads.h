#pragma once

#include <functional>
#include <string>
#include <vector>

#include "engine/loaded_model.h"
#include "engine/pruning/pruning_options.h"
#include "eval/house_data.h"

namespace quire {

struct HeadSearch {
  uint32_t tokens = 1024;  // of a prompt
  uint32_t prompts = 16;
  uint32_t window = 32;  // the last tokens of a prompt, which look
  double layers = 0.25;  // the share of the layers that is looked at: the prompt is computed up to there
};

// A head, and how much of the attention of a prompt's last tokens it pays the fact they ask for, on the mean.
struct HeadShare {
  uint32_t layer = 0, head = 0;
  double share = 0;
};

struct FoundHeads {
  EvaluatorHeads best;
  std::vector<HeadShare> heads;  // all that were looked at, the best first
};

// Finds the heads of an early layer that look at the fact in prompts that hide one among other texts. Throws Error if no layer
// that is looked at sees everything. `progress` is told how many prompts are done.
FoundHeads find_evaluator_heads(const LoadedModel& model, const HouseData& data, const HeadSearch& search,
                                const std::function<void(size_t)>& progress = {});

// Beside the model: the heads that were found for it.
std::string evaluator_heads_path(const std::string& model_path);
void write_evaluator_heads(const std::string& path, const FoundHeads& found, const HeadSearch& search);
// Throws Error if there is no such file, or it does not say what it should.
EvaluatorHeads read_evaluator_heads(const std::string& path);

}  // namespace quire
