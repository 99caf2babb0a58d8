#include "openai/vector_writer.h"
#include "server/service.h"
#include "wire/ollama_vectors.h"

// Texts that become vectors, and texts that are ranked.

namespace quire {
namespace {

std::string as_text(std::string text) {
  return text;
}
std::string as_text(const OrderedJson& json) {
  return dump(json);
}

}  // namespace

template <class Asked, class Written>
asio::awaitable<void> Service::ask_and_gather(Exchange& exchange,
                                              Asked (*read)(const OrderedJson&, const ServedModel&),
                                              Written (*write)(const Asked&, const std::vector<WholeAnswer>&,
                                                               const Usage&, const ServedModel&)) {
  const auto understand = [&] { return read(parse_body(exchange.request().body), parts_.model); };
  Asked asked = co_await aside(exchange, understand);
  exchange.drop_body();
  refuse_if_closing();  // it may have begun meanwhile
  admit_ask(exchange.request(), asked.ask);
  const Completions::Gathered all = co_await completions_.gather(exchange, std::move(asked.ask));
  const auto say = [&] { return as_text(write(asked, all.answers, all.usage, parts_.model)); };
  HttpResponse response;
  response.body = co_await workers_.write_reply(say);
  co_await exchange.respond(std::move(response));
}

asio::awaitable<void> Service::embeddings(Exchange& exchange) {
  co_await ask_and_gather(exchange, parse_embeddings, embeddings_json);
}

asio::awaitable<void> Service::rerank(Exchange& exchange) {
  co_await ask_and_gather(exchange, parse_rerank, rerank_json);
}

asio::awaitable<void> Service::ollama_embed(Exchange& exchange) {
  co_await ask_and_gather(exchange, parse_ollama_embed, ollama_embed_json);
}

asio::awaitable<void> Service::ollama_embeddings(Exchange& exchange) {
  co_await ask_and_gather(exchange, parse_ollama_embeddings, ollama_embeddings_json);
}

}  // namespace quire
