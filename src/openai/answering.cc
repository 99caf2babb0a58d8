#include "openai/answering.h"

#include <utility>

#include "openai/openai_response.h"

namespace quire {

std::optional<ApiError> failure_of(const Answer& answer) {
  switch (answer.finish_reason) {
    case FinishReason::deadline:
      return ApiError(504, "", "deadline_exceeded",
                      fmt::format("the request was not done in time: {} tokens of its answer were computed",
                                  answer.tokens.size()));
    case FinishReason::no_room:
      return ApiError(503, "", "no_room", "what is pinned leaves too few KV pages for this request");
    case FinishReason::cancelled:
      return ApiError(503, "", "cancelled", "the request was cancelled");
    case FinishReason::failed:
      return ApiError(500, "", "step_failed",
                      fmt::format("the server failed while it computed this answer: {}",
                                  answer.problem.empty() ? "nothing more is known" : answer.problem));
    default:
      return std::nullopt;
  }
}

void Answering::begin(const ServedModel& model) {
  if (!ask.parse) return;
  for (uint32_t i = 0; i < ask.answers(); ++i)
    parsers.push_back(std::make_unique<ResponseParser>(model.format->traits().response, *ask.parse));
}

void Answering::read(uint32_t index, const std::string& text, OutputEvents& events) {
  if (text.empty()) return;
  if (parsers.empty()) {
    if (events.empty()) events.emplace_back();
    events.back().text += text;
  } else {
    parsers[index]->push(text, events);
    leave_out_calls(events);
  }
}

AnswerEnd Answering::end(uint32_t index, const Answer& answer, OutputEvents& events) {
  AnswerEnd end{.reason = answer.finish_reason,
                .stop = answer.stop,
                .tokens = answer.tokens.size(),
                .hand_over = answer.hand_over};
  if (ask.leave_out_answer) end = {.reason = FinishReason::length, .stop = {}, .tokens = 0};
  if (parsers.empty()) return end;
  parsers[index]->finish(events);
  leave_out_calls(events);
  end.called = parsers[index]->calls() > 0;
  return end;
}

void Answering::leave_out_calls(OutputEvents& events) const {
  if (ask.one_call) std::erase_if(events, [](const OutputEvent& event) { return event.call > 0; });
}

void Answering::settle(uint32_t index, const Answer* answer, const std::string& refused) {
  ++finished;
  if (!refused.empty()) {
    finished = ask.answers();
    failed = answer == nullptr          ? ApiError(400, "", "invalid_value", refused)
             : !answer->problem.empty() ? failure_of(*answer)
                                        : ApiError(503, "", "out_of_memory", refused);
    return;
  }
  if (const auto why = failure_of(*answer); why && !failed) failed = why;
  if (!ask.leave_out_answer) usage.answer_tokens += answer->tokens.size();
  if (index % ask.choices == 0) {
    usage.prompt_tokens += answer->prompt_tokens;
    usage.cached_tokens += answer->account.cached_tokens;
  }
  if (index == 0) first = *answer;
}

AnswerPart Answering::echoed(uint32_t index, const ServedModel& model) const {
  const uint32_t prompt = index / ask.choices;
  const std::vector<TokenId>& tokens = ask.prompts[prompt];
  AnswerPart part;
  part.choice = index;
  part.events.emplace_back().text = model.text->tokenizer.decode(tokens);
  if (!ask.score_prompt) return part;
  part.prompt.push_back({.position = 0, .token = tokens.front(), .loss = 0, .top_logprobs = {}});
  const auto found = scores.find(prompt * ask.choices);
  if (found != scores.end())
    part.prompt.insert(part.prompt.end(), found->second.begin(), found->second.end());
  return part;
}

void Answering::put_echoes(std::vector<WholeAnswer>& answers, const ServedModel& model) const {
  for (uint32_t i = 0; ask.echo && i < answers.size(); ++i) {
    AnswerPart part = echoed(i, model), said = std::exchange(answers[i].part, {});
    part.events.insert(part.events.end(), said.events.begin(), said.events.end());
    part.tokens = std::move(said.tokens);
    answers[i].part = std::move(part);
  }
}

std::vector<WholeAnswer> Answering::prompts_alone(const ServedModel& model) {
  std::vector<WholeAnswer> answers;
  for (uint32_t i = 0; i < ask.answers(); ++i) {
    const auto& prompt = ask.prompts[i / ask.choices];
    WholeAnswer& answer = answers.emplace_back();
    answer.part.choice = i;
    answer.part.events.emplace_back().text = model.text->tokenizer.decode(prompt);
    answer.end.reason = FinishReason::length;
    if (i % ask.choices == 0) usage.prompt_tokens += prompt.size();
  }
  return answers;
}

OrderedJson Answering::report(const std::string& id) const {
  return ask.report && first ? report_json(id, *first) : OrderedJson();
}

}  // namespace quire
