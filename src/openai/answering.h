#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "chat/response_parser.h"
#include "openai/answer_writer.h"
#include "openai/openai_request.h"

namespace quire {

// Why an answer is no answer; nothing if it is one.
std::optional<ApiError> failure_of(const Answer& answer);

// An ask whose answers come: what their text says, what they cost, and why they are none. Belongs to whoever reads the answers.
struct Answering {
  Ask ask;
  std::vector<std::unique_ptr<ResponseParser>> parsers;  // by answer; none if answers are taken as they are
  std::map<uint32_t, std::vector<PromptScore>> scores;   // by the first answer to a prompt

  Usage usage;
  uint32_t finished = 0;
  std::optional<Answer> first;  // of choice 0, for the report
  std::optional<ApiError> failed;

  // Makes the parsers, once the ask is there.
  void begin(const ServedModel& model);
  bool done() const { return finished == ask.answers(); }
  // What a piece of an answer's text says.
  void read(uint32_t index, const std::string& text, OutputEvents& events);
  // The same for what was held back, once it is complete.
  AnswerEnd end(uint32_t index, const Answer& answer, OutputEvents& events);
  // Takes the figures of one that is complete, or why the ask was refused: as EngineLoop says it.
  void settle(uint32_t index, const Answer* answer, const std::string& refused);
  // What an answer begins with if its prompt is echoed.
  AnswerPart echoed(uint32_t index, const ServedModel& model) const;
  // Answers that have been read, as they are told of: behind their prompts, if those are echoed.
  void put_echoes(std::vector<WholeAnswer>& answers, const ServedModel& model) const;
  // Answers to an ask that wants only its prompts back.
  std::vector<WholeAnswer> prompts_alone(const ServedModel& model);
  // Null if it is not wanted.
  OrderedJson report(const std::string& id) const;

 private:
  void leave_out_calls(OutputEvents& events) const;
};

}  // namespace quire
