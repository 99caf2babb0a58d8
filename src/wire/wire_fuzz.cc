// Any bytes as the body of a request of Anthropic's or Ollama's API: an ApiError, or an ask that the engine takes.
#include <cstddef>
#include <cstdint>

#include "base/bounded_work.h"
#include "openai/any_body.h"
#include "wire/anthropic_request.h"
#include "wire/anthropic_writer.h"
#include "wire/ollama_request.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const quire::ServedModel model = quire::byte_model();  // is made once, for all
  const quire::BoundedWork work(size);
  const std::string_view body(reinterpret_cast<const char*>(data), size);
  using Read = quire::Ask (*)(const quire::OrderedJson&, const quire::ServedModel&);
  for (const Read read : {Read(quire::parse_anthropic_messages), Read(quire::parse_ollama_chat),
                          Read(quire::parse_ollama_generate)}) {
    try {
      const quire::Ask ask = read(quire::parse_body(body), model);
      CHECK(ask.answers() == 1 && !ask.prompts[0].empty() && ask.prompts[0].size() < model.context);
      quire::check_tokens(ask.prompts[0]);
      ask.request.sampling.check();
    } catch (const quire::ApiError& error) {
      CHECK(error.status() == 400 || error.status() == 404);
      CHECK(!quire::anthropic_error(error)["error"]["message"].get<std::string>().empty());
    }
  }
  return 0;
}
