// Any bytes as the body of a request of OpenAI's Responses, Anthropic's or Ollama's API: an ApiError, or an ask that the
// engine takes.
#include <cstddef>
#include <cstdint>

#include "base/bounded_work.h"
#include "openai/any_body.h"
#include "wire/anthropic_request.h"
#include "wire/anthropic_writer.h"
#include "wire/ollama_request.h"
#include "wire/ollama_vectors.h"
#include "wire/responses_request.h"
#include "wire/responses_turn.h"
#include "wire/responses_writer.h"

namespace {

// What was said before is the client's as well.
quire::OrderedJson earlier_turn(const std::string& id) {
  return quire::OrderedJson::array(
      {{{"role", "user"}, {"content", id}}, {{"role", "assistant"}, {"content", "Ho"}}});
}

quire::Ask parse_response(const quire::OrderedJson& body, const quire::ServedModel& model) {
  return quire::parse_responses(body, model, earlier_turn);
}

quire::Ask parse_embed(const quire::OrderedJson& body, const quire::ServedModel& model) {
  return quire::parse_ollama_embed(body, model).ask;
}

quire::Ask parse_embeddings_of_old(const quire::OrderedJson& body, const quire::ServedModel& model) {
  return quire::parse_ollama_embeddings(body, model).ask;
}

// What is told of its request is JSON whatever the request was, and can be gone on from.
void answer_it(const quire::Ask& ask, const quire::ServedModel& model) {
  quire::ResponsesWriter writer({quire::AskKind::chat, "resp_1", 0, model.name, ""}, ask,
                                model.text->tokenizer);
  std::string stream;
  writer.begin(0, stream);
  writer.end(0, {}, stream);
  writer.done({}, nullptr, stream);
  CHECK(stream.find("event: response.completed\n") != std::string::npos);
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const quire::ServedModel model = quire::byte_model();  // is made once, for all
  const quire::BoundedWork work(size);
  const std::string_view body(reinterpret_cast<const char*>(data), size);
  using Read = quire::Ask (*)(const quire::OrderedJson&, const quire::ServedModel&);
  for (const Read read : {Read(quire::parse_anthropic_messages), Read(quire::parse_ollama_chat),
                          Read(quire::parse_ollama_generate), Read(parse_response)}) {
    try {
      const quire::Ask ask = read(quire::parse_body(body), model);
      CHECK(ask.answers() == 1 && !ask.prompts[0].empty() && ask.prompts[0].size() < model.context);
      quire::check_tokens(ask.prompts[0]);
      ask.request.sampling.check();
      if (ask.turn) answer_it(ask, model);
    } catch (const quire::ApiError& error) {
      CHECK(error.status() == 400 || error.status() == 404);
      CHECK(!quire::anthropic_error(error)["error"]["message"].get<std::string>().empty());
    }
  }
  for (const Read read : {Read(parse_embed), Read(parse_embeddings_of_old)}) {
    try {
      quire::check_texts(read(quire::parse_body(body), model));
    } catch (const quire::ApiError& error) {
      CHECK(error.status() == 400 || error.status() == 404);
    }
  }
  return 0;
}
