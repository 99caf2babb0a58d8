#include "server/responses.h"
#include "server/service.h"
#include "wire/anthropic_request.h"
#include "wire/ollama_request.h"
#include "wire/ollama_writer.h"

// Answers in the words of other APIs than OpenAI's.

namespace quire {
namespace {

// The least that clients of Ollama's API ask for is 0.6.4; this is the version of the API, not of the program.
constexpr const char* kOllamaVersion = "0.13.0";

OrderedJson count_json(uint64_t tokens) {
  OrderedJson json = OrderedJson::object();
  json["input_tokens"] = tokens;
  return json;
}

OrderedJson ollama_list_json(const ServedModel& model) {
  OrderedJson json = OrderedJson::object();
  json["models"] = OrderedJson::array({ollama_model_json(model)});
  return json;
}

OrderedJson ollama_version_json() {
  OrderedJson json = OrderedJson::object();
  json["version"] = kOllamaVersion;
  return json;
}

}  // namespace

asio::awaitable<void> Service::anthropic_messages(Exchange& exchange) {
  co_await ask_and_answer(exchange, parse_anthropic_messages);
}

asio::awaitable<void> Service::anthropic_count(Exchange& exchange) {
  const auto work = [&] {
    return dump(count_json(count_anthropic_tokens(parse_body(exchange.request().body), parts_.model)));
  };
  HttpResponse response;
  response.body = co_await aside(exchange, work);
  exchange.drop_body();
  co_await exchange.respond(std::move(response));
}

asio::awaitable<void> Service::ollama_chat(Exchange& exchange) {
  co_await ask_and_answer(exchange, parse_ollama_chat);
}

asio::awaitable<void> Service::ollama_generate(Exchange& exchange) {
  co_await ask_and_answer(exchange, parse_ollama_generate);
}

asio::awaitable<void> Service::ollama_tags(Exchange& exchange) {
  co_await exchange.respond(json_response(ollama_list_json(parts_.model)));
}

asio::awaitable<void> Service::ollama_running(Exchange& exchange) {
  co_await exchange.respond(json_response(ollama_list_json(parts_.model)));
}

asio::awaitable<void> Service::ollama_show(Exchange& exchange) {
  const auto work = [&] {
    check_ollama_model(parse_body(exchange.request().body), parts_.model);
    return dump(ollama_show_json(parts_.model));
  };
  HttpResponse response;
  response.body = co_await aside(exchange, work);
  exchange.drop_body();
  co_await exchange.respond(std::move(response));
}

asio::awaitable<void> Service::ollama_version(Exchange& exchange) {
  co_await exchange.respond(json_response(ollama_version_json()));
}

}  // namespace quire
