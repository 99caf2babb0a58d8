#pragma once

#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "engine/engine.h"
#include "engine/loaded_model.h"
#include "eval/needle_cases.h"

namespace quire {

// One way to keep less of a prompt; without options everything is kept.
struct PruningWay {
  std::optional<PruningOptions> pruning = {};
  bool sees_question = true;  // it prunes the whole prompt; else what stands before the question
};

// Asks for facts among other texts, each from the whole cache and from what some ways keep of it. The pages of a prompt are
// shared by all ways that compute it whole, so a prompt costs little more than once. The model must outlive it.
class AnswersKept {
 public:
  // For prompts of at most `tokens` tokens; what the request to say a text again takes is beside that.
  AnswersKept(const LoadedModel& model, const KvFormats& formats, uint32_t tokens);

  // Whether the model says what is expected, by way; all at once.
  std::vector<bool> ask(const NeedleCase& one, std::span<const PruningWay> ways);
  bool ask(const NeedleCase& one) { return ask(one, std::vector<PruningWay>(1)).front(); }

 private:
  const LoadedModel& model_;
  Engine engine_;
};

// The first token of a prompt that depends on what is asked.
uint32_t question_begin(const ModelText& model, const NeedleCase& one, std::span<const TokenId> prompt);

}  // namespace quire
