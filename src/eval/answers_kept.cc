#include "eval/answers_kept.h"

#include <algorithm>

#include "base/check.h"
#include "eval/text_match.h"

namespace quire {
namespace {

constexpr uint32_t kMostOfAnswer = 24;
constexpr uint32_t kAskedTogether = 8;      // computed together
constexpr uint32_t kRoomAfterPrompt = 256;  // room after a prompt for what a policy reads twice

EngineOptions options_for(const ModelSpec& spec, const KvFormats& formats, uint32_t tokens) {
  EngineOptions options;
  options.kv_formats = formats;
  options.context = std::min(spec.context, tokens + kRoomAfterPrompt);
  options.max_sequences = kAskedTogether;
  return options;
}

}  // namespace

uint32_t question_begin(const ModelText& model, const NeedleCase& one, std::span<const TokenId> prompt) {
  const std::vector<TokenId> other = user_prompt(model, one.text() + "?");
  return uint32_t(std::ranges::mismatch(prompt, other).in1 - prompt.begin());
}

AnswersKept::AnswersKept(const LoadedModel& model, const KvFormats& formats, uint32_t tokens)
    : model_(model), engine_(model.engine_model(), options_for(model.spec(), formats, tokens)) {}

std::vector<bool> AnswersKept::ask(const NeedleCase& one, std::span<const PruningWay> ways) {
  const std::vector<TokenId> prompt = user_prompt(model_.text(), one.text() + one.asked.question);
  const uint32_t text_tokens = question_begin(model_.text(), one, prompt);
  std::vector<SequenceId> ids;
  for (const PruningWay& way : ways) {
    Request request;
    request.prompt = prompt;
    request.sampling.temperature = 0;
    request.max_tokens = kMostOfAnswer;
    request.pruning = way.pruning;
    if (way.pruning && !way.sees_question) request.pruning->scored = text_tokens;
    ids.push_back(engine_.submit(std::move(request)));
  }
  std::vector<bool> right;
  while (engine_.step()) {
  }
  for (const SequenceId id : ids) {
    const std::optional<Answer> answer = engine_.take_answer(id);
    CHECK(answer.has_value());
    right.push_back(says_answer(one.asked.answer, answer->text));
  }
  return right;
}

}  // namespace quire
