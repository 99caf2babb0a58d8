#include "engine/model_grammars.h"
#include "openai/json_fields.h"
#include "server/responses.h"
#include "server/service.h"
#include "server/web_files.h"
#include "text/utf8.h"

// The page, the state of the server, and answers.

namespace quire {
namespace {

HttpResponse file_response(const WebFile& file) {
  HttpResponse response = text_response(std::string(file.type), std::string(file.bytes));
  response.headers = {
      {"Cache-Control", "no-cache"},
      {"Content-Security-Policy", "default-src 'self'; frame-ancestors 'none'; base-uri 'none'"},
      {"X-Content-Type-Options", "nosniff"},
      {"Referrer-Policy", "no-referrer"}};
  return response;
}

// GCC 12 cannot compile lists of initializers inside coroutines: they are made here.
OrderedJson health_json(const char* status) {
  return {{"status", status}};
}

OrderedJson version_json(const std::string& version) {
  return {{"version", version}};
}

// What routers that know SGLang ask for, in its words.
OrderedJson server_info_json(const ServedModel& model, const ServiceOptions& options) {
  return {{"model_path", model.name},
          {"served_model_name", model.name},
          {"version", options.version},
          {"context_length", model.context},
          {"kv_cache_dtype", options.kv_format},
          {"tp_size", 1},
          {"dp_size", 1},
          {"status", "ready"}};
}

// Where routers hear of the cache, and what became of what there was to say.
OrderedJson kv_events_json(const KvEventPublisher& events) {
  const KvEventPublisher::Stats stats = events.stats();
  OrderedJson json = {{"address", events.address()},
                      {"topic", events.topic()},
                      {"batches", stats.batches},
                      {"events", stats.events},
                      {"dropped", stats.dropped}};
  if (!events.replay_address().empty()) json["replay_address"] = events.replay_address();
  return json;
}

OrderedJson model_info_json(const ServedModel& model) {
  return {{"model_path", model.name},
          {"tokenizer_path", model.name},
          {"served_model_name", model.name},
          {"is_generation", true},
          {"max_model_len", model.context}};
}

OrderedJson model_json(const ServedModel& model) {
  return {{"id", model.name},
          {"object", "model"},
          {"created", model.created},
          {"owned_by", "quire"},
          {"max_model_len", model.context}};
}

OrderedJson model_list_json(const ServedModel& model) {
  return {{"object", "list"}, {"data", OrderedJson::array({model_json(model)})}};
}

OrderedJson cancelled_json(const std::string& id) {
  return {{"id", id}, {"cancelled", true}};
}

// Whether a text is nothing but the name of a special token: so clients ask for its id that know it from /tokenizer_info.
bool names_special_token(const OrderedJson& text, const Tokenizer& tokenizer) {
  if (!text.is_string()) return false;
  const auto token = tokenizer.find(text.get_ref<const std::string&>());
  return token && tokenizer.is_special(*token);
}

OrderedJson tokenize_json(std::string_view request_body, const ServedModel& model) {
  OrderedJson body = parse_body(request_body);
  for (const char* field : {"prompt", "content"}) {
    const JsonFields fields(body);
    if (!fields.has("parse_special") && names_special_token(fields.get(field), model.text->tokenizer))
      body["parse_special"] = true;
  }
  const std::vector<TokenId> tokens = parse_prompt(body, model);
  OrderedJson reply = {{"count", tokens.size()}, {"max_model_len", model.context}, {"tokens", tokens}};
  if (!JsonFields(body).boolean("return_token_strs").value_or(false)) return reply;
  OrderedJson words = OrderedJson::array();
  for (const TokenId& token : tokens) {
    words.push_back(
        replace_broken_utf8(model.text->tokenizer.decode(std::span(&token, 1), Tokenizer::Special::keep)));
  }
  reply["token_strs"] = std::move(words);
  return reply;
}

// What clients that count in the server's tokens ask for first, as vLLM has it.
OrderedJson tokenizer_info_json(const ServedModel& model) {
  const Tokenizer& tokenizer = model.text->tokenizer;
  const auto spelled = [&](std::optional<TokenId> token) {
    return token ? OrderedJson(replace_broken_utf8(std::string(tokenizer.token(*token)))) : OrderedJson();
  };
  const std::string& chat_template = model.text->template_sources.usual;
  return {{"tokenizer_class", "quire"},
          {"bos_token", spelled(tokenizer.bos())},
          {"eos_token", spelled(tokenizer.eos())},
          {"pad_token", nullptr},
          {"vocab_size", model.vocab},
          {"model_max_length", model.context},
          {"chat_template", chat_template.empty() ? OrderedJson() : OrderedJson(chat_template)}};
}

// All but the id of the request, which is in the path.
struct Fork {
  Ask ask;
  ForkPoint point;
};

Fork parse_fork(std::string_view request_body, const ServedModel& model) {
  const OrderedJson body = parse_body(request_body);
  const JsonFields fields(body);
  Fork fork{parse_continuation(body, model), {}};
  if (fork.ask.choices != 1) bad_field("n", "a fork has one answer; 'n' must be 1");
  if (fork.ask.echo) bad_field("echo", "a fork does not echo its prompt");
  if (!fork.ask.cache_salt.empty())
    bad_field("cache_salt", "a fork has the 'cache_salt' of the request that it comes from");
  fork.point.choice = uint32_t(fields.integer("choice", 0, 1 << 20).value_or(0));
  const auto at = fields.integer("at", 1, INT32_MAX);
  if (!at)
    bad_field("at",
              "'at' is missing: how many of the request's tokens, prompt and answer, the fork begins with");
  fork.point.at = uint32_t(*at);
  return fork;
}

OrderedJson detokenize_json(std::string_view request_body, const ServedModel& model) {
  const OrderedJson body = parse_body(request_body);
  const JsonFields fields(body);
  if (!fields.has("tokens")) bad_field("tokens", "'tokens' is missing");
  constexpr size_t kMostBytes = size_t(64) << 20;  // of the text, in which a token may stand for many
  const size_t most = kMostBytes / std::max<size_t>(1, model.text->tokenizer.longest_token_bytes());
  const std::vector<TokenId> tokens =
      fields.tokens("tokens", model.vocab, std::max<size_t>(most, model.context));
  const bool skip = fields.boolean("skip_special_tokens").value_or(false);
  const std::string text = replace_broken_utf8(
      model.text->tokenizer.decode(tokens, skip ? Tokenizer::Special::skip : Tokenizer::Special::keep));
  return {{"prompt", text}, {"content", text}};  // as vLLM and as llama.cpp name it
}

}  // namespace

asio::awaitable<void> Service::page_file(Exchange& exchange) {
  const std::string& path = exchange.request().path;
  const WebFile* file = find_web_file(path == "/" ? "index.html" : path.substr(1));
  if (file == nullptr) throw ApiError(404, "", "not_found", "the page is not built into this program");
  co_await exchange.respond(file_response(*file));
}

asio::awaitable<void> Service::health(Exchange& exchange) {
  const char* status = closing_ ? "closing" : draining_ ? "draining" : "ok";
  co_await exchange.respond(json_response(health_json(status), closing_ || draining_ ? 503 : 200));
}

asio::awaitable<void> Service::version(Exchange& exchange) {
  co_await exchange.respond(json_response(version_json(options_.version)));
}

asio::awaitable<void> Service::server_info(Exchange& exchange) {
  OrderedJson json = server_info_json(parts_.model, options_);
  if (parts_.kv_events != nullptr) json["kv_events"] = kv_events_json(*parts_.kv_events);
  co_await exchange.respond(json_response(json));
}

asio::awaitable<void> Service::model_info(Exchange& exchange) {
  co_await exchange.respond(json_response(model_info_json(parts_.model)));
}

asio::awaitable<void> Service::metrics(Exchange& exchange) {
  const auto tell = [&, connections = connections_ ? connections_() : 0] {
    return parts_.metrics.text(parts_.meter.rates(Clock::now()), connections,
                               parts_.model.text->grammars->figures());
  };
  std::string text = co_await workers_.write_reply(tell);
  co_await exchange.respond(text_response("text/plain; version=0.0.4; charset=utf-8", std::move(text)));
}

asio::awaitable<void> Service::models(Exchange& exchange) {
  const std::string& path = exchange.request().path;
  if (path == "/v1/models") {
    co_await exchange.respond(json_response(model_list_json(parts_.model)));
    co_return;
  }
  if (path.substr(11) != parts_.model.name)
    throw ApiError(404, "model", "model_not_found",
                   fmt::format("the model '{}' is not served here", path.substr(11)));
  co_await exchange.respond(json_response(model_json(parts_.model)));
}

asio::awaitable<void> Service::ask_and_answer(Exchange& exchange, Reader read) {
  const auto understand = [&] { return read(parse_body(exchange.request().body), parts_.model); };
  Ask ask = co_await aside(exchange, understand);
  exchange.drop_body();
  refuse_if_closing();  // it may have begun meanwhile
  admit_ask(exchange.request(), ask);
  co_await completions_.answer(exchange, std::move(ask));
}

asio::awaitable<void> Service::chat(Exchange& exchange) {
  co_await ask_and_answer(exchange, parse_chat);
}

asio::awaitable<void> Service::complete(Exchange& exchange) {
  co_await ask_and_answer(exchange, parse_completion);
}

// GET /v1/stream/ID
asio::awaitable<void> Service::stream_again(Exchange& exchange) {
  const std::string id = exchange.request().path.substr(std::string_view("/v1/stream/").size());
  co_await completions_.kept().follow(exchange, id, viewer(exchange.request()));
}

// POST /requests/ID/fork
asio::awaitable<void> Service::fork(Exchange& exchange) {
  const std::string path = exchange.request().path.substr(std::string_view("/requests/").size());
  if (!path.ends_with("/fork"))
    throw ApiError(404, "", "not_found", "a request can be forked with POST /requests/ID/fork");
  const auto understand = [&] { return parse_fork(exchange.request().body, parts_.model); };
  Fork fork = co_await aside(exchange, understand);
  exchange.drop_body();
  fork.point.request = path.substr(0, path.size() - 5);
  const auto find = [&book = parts_.book, point = fork.point, who = viewer(exchange.request())](Engine&) {
    const auto entry = book.find(point.request, point.choice, who);
    return entry == nullptr ? std::nullopt : std::optional(entry->salt);
  };
  const std::optional<CacheSalt> salt = co_await ask_engine(find);
  refuse_if_closing();
  if (!salt)
    throw ApiError(404, "", "not_found",
                   fmt::format("the request '{}' is not known (any more)", fork.point.request));
  admit_ask(exchange.request(), fork.ask);
  fork.ask.request.salt = *salt;
  fork.ask.prompts.emplace_back();  // comes from the other request
  co_await completions_.answer(exchange, std::move(fork.ask), fork.point);
}

asio::awaitable<void> Service::cancel(Exchange& exchange) {
  const std::string id = exchange.request().path.substr(std::string_view("/requests/").size());
  if (!completions_.cancel(id, viewer(exchange.request())))
    throw ApiError(404, "", "not_found", fmt::format("no request '{}' runs or waits", id));
  co_await exchange.respond(json_response(cancelled_json(id)));
}

asio::awaitable<void> Service::tokenizer_info(Exchange& exchange) {
  co_await exchange.respond(json_response(tokenizer_info_json(parts_.model)));
}

asio::awaitable<void> Service::tokenize(Exchange& exchange) {
  const auto work = [&] { return dump(tokenize_json(exchange.request().body, parts_.model)); };
  HttpResponse response;
  response.body = co_await aside(exchange, work);
  exchange.drop_body();
  co_await exchange.respond(std::move(response));
}

asio::awaitable<void> Service::detokenize(Exchange& exchange) {
  const auto work = [&] { return dump(detokenize_json(exchange.request().body, parts_.model)); };
  HttpResponse response;
  response.body = co_await aside(exchange, work);
  exchange.drop_body();
  co_await exchange.respond(std::move(response));
}

}  // namespace quire
