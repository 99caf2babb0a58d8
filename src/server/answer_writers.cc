#include "server/answer_writers.h"

#include "openai/openai_writer.h"
#include "wire/anthropic_writer.h"
#include "wire/ollama_writer.h"
#include "wire/responses_writer.h"

namespace quire {

std::unique_ptr<AnswerWriter> make_answer_writer(const ResponseHead& head, const Ask& ask,
                                                 const ServedModel& model) {
  switch (ask.api) {
    case Api::anthropic:
      return std::make_unique<AnthropicWriter>(head, ask);
    case Api::ollama:
      return std::make_unique<OllamaWriter>(head, ask);
    case Api::responses:
      return std::make_unique<ResponsesWriter>(head, ask, model.text->tokenizer);
    case Api::openai:
      break;
  }
  return std::make_unique<OpenAiWriter>(head, ask, model.text->tokenizer);
}

OrderedJson error_json(Api api, const ApiError& error) {
  if (api == Api::anthropic) return anthropic_error(error);
  if (api == Api::ollama) return OrderedJson{{"error", error.what()}};
  return error.json();
}

}  // namespace quire
