#pragma once

#include <array>
#include <optional>
#include <string>
#include <vector>

#include "engine/loaded_model.h"
#include "engine/pruning/pruning_options.h"

namespace quire {

inline constexpr std::array kTriedShares = {0.7, 0.5, 0.3};  // of a prompt
inline constexpr size_t kHalf = 1;                           // among them
inline constexpr double kEnoughAnswers = 0.98;               // of those that the whole cache gives

// What the best heads of one layer are worth.
struct LayerHeads {
  EvaluatorHeads evaluator;
  double share =
      0;  // of the attention of a prompt's last tokens, on the mean, that goes to the fact they ask for
  // The share of a prompt's work that evaluator-prompt saves if half is kept; less than nothing where it costs more.
  double saved = 0;
  struct Kept {
    uint32_t asked = 0;  // facts; fewer than others of a layer that had lost too many answers
    std::array<uint32_t, kTriedShares.size()> whole = {};  // answers with `evaluator`, by what is kept
    // And with `evaluator-prompt`, of half; nothing where the others were too few already.
    struct Before {
      uint32_t asked = 0, kept = 0;
    };
    std::optional<Before> before = {};
  };
  std::optional<Kept> kept = {};  // of those that were tried
};

// The heads that a model's evaluator policies ask, and how they were found.
struct FoundHeads {
  EvaluatorHeads best = {};
  uint32_t tokens = 0, prompts = 0, window = 0;  // of the prompts that were searched
  uint32_t asked = 0, answered = 0;  // facts, and those that the whole cache gives: what is kept is of these
  std::vector<LayerHeads> layers = {};  // that see everything, those tried first, then by their share
  struct Other {
    PruningPolicy policy = PruningPolicy::zip;
    uint32_t kept = 0;  // answers at half
  };
  std::optional<Other> other = {};  // the policy that does better, where no layer keeps enough

  const LayerHeads& chosen() const;
  bool is_enough(uint32_t kept) const { return kept >= kEnoughAnswers * answered; }
  // Whether a layer keeps enough at half after a whole prefill.
  bool is_enough(const LayerHeads& layer) const {
    return layer.kept && layer.kept->asked == answered && is_enough(layer.kept->whole[kHalf]);
  }
  // Whether so many facts were known that what is kept of them says something.
  bool could_be_tried() const { return answered >= 10; }
  // Nothing to say, or why these heads are not to be relied on.
  std::string warning() const;
};

// Beside the model: the heads that were found for it.
std::string evaluator_heads_path(const std::string& model_path);
// Whoever opens the file finds all of it or the old one. Throws Error.
void write_evaluator_heads(const std::string& path, const FoundHeads& found, const LoadedModel& model);
// Throws Error, a sentence, if the file is another model's, is damaged, or does not say what it should.
FoundHeads read_evaluator_heads(const std::string& path, const LoadedModel& model);

}  // namespace quire
