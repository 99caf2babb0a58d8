#include "server/service.h"

#include <charconv>

#include <boost/asio/bind_executor.hpp>
#include <boost/asio/post.hpp>
#include <boost/asio/this_coro.hpp>
#include <boost/asio/use_awaitable.hpp>

#include "base/error.h"
#include "openai/api_error.h"
#include "openai/json_fields.h"
#include "server/live_report.h"
#include "server/web_files.h"
#include "text/utf8.h"

namespace quire {
namespace {

constexpr size_t kLargeBody = 64 << 10;  // bytes that take long enough to understand that others would notice

// Takes as long whatever the difference is.
bool same_secret(std::string_view a, std::string_view b) {
  unsigned char differs = a.size() == b.size() ? 0 : 1;
  for (size_t i = 0; i < a.size(); ++i)
    differs = static_cast<unsigned char>(differs | (a[i] ^ (b.empty() ? '\0' : b[i % b.size()])));
  return differs == 0;
}

// The scheme's name may be written in any case.
bool has_bearer(std::string_view header) {
  constexpr std::string_view kScheme = "bearer ";
  return header.size() >= kScheme.size() &&
         std::equal(kScheme.begin(), kScheme.end(), header.begin(),
                    [](char a, char b) { return a == std::tolower(static_cast<unsigned char>(b)); });
}

uint64_t query_number(const HttpRequest& request, const char* name) {
  uint64_t number = 0;
  const auto found = request.query.find(name);
  if (found != request.query.end())
    std::from_chars(found->second.data(), found->second.data() + found->second.size(), number);
  return number;
}

// The number of a path's last part; nothing if that is anything else.
std::optional<uint32_t> number_in(std::string_view text) {
  uint32_t number = 0;
  const auto [end, problem] = std::from_chars(text.data(), text.data() + text.size(), number);
  return problem == std::errc() && end == text.data() + text.size() ? std::optional(number) : std::nullopt;
}

bool matches(std::string_view pattern, std::string_view path) {
  if (!pattern.ends_with('*')) return pattern == path;
  pattern.remove_suffix(1);
  return path.starts_with(pattern) && path.size() > pattern.size();
}

HttpResponse text_response(std::string type, std::string body) {
  HttpResponse response;
  response.type = std::move(type);
  response.body = std::move(body);
  return response;
}

HttpResponse file_response(const WebFile& file) {
  HttpResponse response = text_response(std::string(file.type), std::string(file.bytes));
  response.headers = {
      {"Cache-Control", "no-cache"},
      {"Content-Security-Policy", "default-src 'self'; frame-ancestors 'none'; base-uri 'none'"},
      {"X-Content-Type-Options", "nosniff"},
      {"Referrer-Policy", "no-referrer"}};
  return response;
}

HttpResponse json_response(const OrderedJson& json, int status = 200) {
  return {.status = status, .body = dump(json)};
}

// GCC 12 cannot compile lists of initializers inside coroutines: they are made here.
OrderedJson health_json(bool closing) {
  return {{"status", closing ? "closing" : "ok"}};
}

OrderedJson version_json(const std::string& version) {
  return {{"version", version}};
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

OrderedJson pin_json(const Engine::Pin& pin) {
  return {{"pin", pin.id.value}, {"tokens", pin.tokens}};
}

OrderedJson unpinned_json(uint32_t pin) {
  return {{"pin", pin}, {"unpinned", true}};
}

std::string snapshot_name(std::string_view request_body) {
  if (request_body.empty()) return SnapshotFolder::kUsualName;
  const OrderedJson body = parse_body(request_body);
  const std::string name = JsonFields(body).text("name").value_or(SnapshotFolder::kUsualName);
  if (!SnapshotFolder::is_name(name))
    bad_field("name", "'name' must be of letters, digits, '.', '_' and '-', at most 100 and no dot in front");
  return name;
}

OrderedJson saved_json(const std::string& name, const SnapshotFigures& saved, double seconds) {
  return {{"name", name},
          {"tokens", saved.tokens},
          {"pages", saved.pages},
          {"bytes", saved.bytes},
          {"seconds", seconds}};
}

OrderedJson tokenize_json(std::string_view request_body, const ServedModel& model) {
  const OrderedJson body = parse_body(request_body);
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

OrderedJson detokenize_json(std::string_view request_body, const ServedModel& model) {
  const OrderedJson body = parse_body(request_body);
  const JsonFields fields(body);
  if (!fields.has("tokens")) bad_field("tokens", "'tokens' is missing");
  const std::vector<TokenId> tokens = fields.tokens("tokens", model.vocab);
  const bool skip = fields.boolean("skip_special_tokens").value_or(false);
  const std::string text = replace_broken_utf8(
      model.text->tokenizer.decode(tokens, skip ? Tokenizer::Special::skip : Tokenizer::Special::keep));
  return {{"prompt", text}, {"content", text}};  // as vLLM and as llama.cpp name it
}

}  // namespace

Service::Service(asio::io_context& io, const ServiceParts& parts, ServiceOptions options)
    : io_(io),
      parts_(parts),
      options_(std::move(options)),
      completions_(io.get_executor(), parts.model, parts.loop, parts.book, parts.metrics, options_.limits,
                   options_.fingerprint) {}

Service::~Service() {
  workers_.join();
  large_workers_.join();
  saver_.join();
}

const std::vector<Service::Route>& Service::routes() {
  static const std::vector<Route> routes = {
      {"GET", "/", &Service::page_file, true},
      {"GET", "/health", &Service::health, true},
      {"GET", "/version", &Service::version},
      {"GET", "/metrics", &Service::metrics},
      {"GET", "/v1/models", &Service::models},
      {"GET", "/v1/models/*", &Service::models},
      {"POST", "/v1/chat/completions", &Service::chat},
      {"POST", "/v1/completions", &Service::complete},
      {"POST", "/tokenize", &Service::tokenize},
      {"POST", "/detokenize", &Service::detokenize},
      {"GET", "/kv", &Service::kv},
      {"POST", "/kv/lookup", &Service::kv_lookup},
      {"POST", "/kv/pin", &Service::kv_pin},
      {"DELETE", "/kv/pin/*", &Service::kv_unpin},
      {"POST", "/kv/save", &Service::kv_save},
      {"GET", "/requests", &Service::requests},
      {"GET", "/requests/*", &Service::steps},
      {"POST", "/requests/*", &Service::fork},
      {"DELETE", "/requests/*", &Service::cancel},
  };
  return routes;
}

asio::awaitable<void> Service::handle(Exchange& exchange) {
  std::optional<ApiError> refused;
  try {
    co_await dispatch(exchange);
  } catch (const ApiError& error) {
    refused = error;
  } catch (const Error& error) {
    refused = ApiError(400, "", "invalid_value", error.what());
  } catch (const std::bad_alloc&) {
    refused = ApiError(503, "", "out_of_memory", "there is not enough memory for this request");
  }
  if (refused) co_await refuse(exchange, *refused);
}

asio::awaitable<void> Service::refuse(Exchange& exchange, const ApiError& error) {
  parts_.metrics.refused(error.status());
  if (exchange.responded()) co_return;
  HttpResponse response = json_response(error.json(), error.status());
  // OpenAI's clients try again after any 5xx; what was ended on purpose, or took too long, would only do so again.
  if (!error.worth_retrying()) response.headers.emplace_back("X-Should-Retry", "false");
  if (error.status() == 429 || (error.status() == 503 && error.worth_retrying()))
    response.headers.emplace_back("Retry-After", "1");
  if (error.status() == 401) response.headers.emplace_back("WWW-Authenticate", "Bearer");
  co_await exchange.respond(std::move(response));
}

void Service::check_host(const HttpRequest& request) const {
  const std::string host = request.header("host");
  if (!options_.local_names_only || host.empty()) return;
  const std::string name = host.substr(0, host.find(':', host.starts_with('[') ? host.find(']') : 0));
  if (name == "localhost" || name == "127.0.0.1" || name == "[::1]") return;
  for (const std::string& allowed : options_.allowed_origins) {
    if (allowed == "*" || allowed == "http://" + host || allowed == "https://" + host) return;
  }
  throw ApiError(
      403, "", "host_not_allowed",
      fmt::format("this server answers to localhost only, not to '{}'; `quire serve --cors http://{}` "
                  "allows it, and so does --api-key",
                  host, host));
}

// A page from elsewhere may use a server on the visitor's own machine only if it was allowed to.
void Service::allow_origin(Exchange& exchange) const {
  const std::string origin = exchange.request().header("origin");
  if (origin.empty()) return;
  const std::string host = exchange.request().header("host");
  if (origin == "http://" + host || origin == "https://" + host) return;
  for (const std::string& allowed : options_.allowed_origins) {
    if (allowed != "*" && allowed != origin) continue;
    exchange.add_header("Access-Control-Allow-Origin", allowed);
    exchange.add_header("Vary", "Origin");
    exchange.add_header("Access-Control-Allow-Methods", "GET, POST, DELETE, OPTIONS");
    // Clients have headers of their own; those that matter here are checked whoever sends them.
    const std::string wanted = exchange.request().header("access-control-request-headers");
    exchange.add_header("Access-Control-Allow-Headers",
                        wanted.empty() ? "Authorization, Content-Type" : wanted);
    exchange.add_header("Access-Control-Expose-Headers", "X-Request-Id, Retry-After");
    exchange.add_header("Access-Control-Max-Age", "600");
    return;
  }
  throw ApiError(
      403, "", "origin_not_allowed",
      fmt::format("pages of {} may not use this server; `quire serve --cors {}` allows it", origin, origin));
}

std::optional<size_t> Service::key_number(const HttpRequest& request) const {
  const std::string header = request.header("authorization");
  if (!has_bearer(header)) return std::nullopt;
  std::optional<size_t> number;
  for (size_t i = 0; i < options_.api_keys.size(); ++i) {
    if (same_secret(options_.api_keys[i], std::string_view(header).substr(7))) number = i + 1;
  }
  return number;
}

void Service::admit(Exchange& exchange, const Route& route) const {
  if (!route.open && !options_.api_keys.empty() && !key_number(exchange.request())) {
    throw ApiError(401, "", "invalid_api_key",
                   "the API key is missing or wrong: send 'Authorization: Bearer KEY'");
  }
  if (exchange.request().method == "POST") refuse_if_closing();
}

void Service::refuse_if_closing() const {
  if (closing_) throw ApiError(503, "", "shutting_down", "the server is shutting down");
}

std::string Service::allowed_methods(std::string_view path) {
  std::string methods;
  for (const Route& route : routes()) {
    if (!matches(route.path, path)) continue;
    methods += std::string(route.method) + ", ";
    if (route.method == std::string_view("GET")) methods += "HEAD, ";
  }
  return methods + "OPTIONS";
}

asio::awaitable<void> Service::dispatch(Exchange& exchange) {
  const HttpRequest& request = exchange.request();
  check_host(request);
  allow_origin(exchange);
  const Route* found = nullptr;
  bool path_known = false;
  for (const Route& route : routes()) {
    if (!matches(route.path, request.path)) continue;
    path_known = true;
    if (request.method == route.method) found = &route;
  }
  if (path_known && request.method == "OPTIONS") {
    HttpResponse nothing = text_response("", "");
    nothing.status = 204;
    co_await exchange.respond(std::move(nothing));
    co_return;
  }
  static constexpr Route kFile{"GET", "", &Service::page_file, true};
  if (found == nullptr && request.method == "GET" && request.path.starts_with('/') &&
      find_web_file(request.path.substr(1)) != nullptr)
    found = &kFile;
  if (found == nullptr) {
    if (path_known) exchange.add_header("Allow", allowed_methods(request.path));
    throw ApiError(path_known ? 405 : 404, "", path_known ? "method_not_allowed" : "not_found",
                   fmt::format("there is no {} {} here; /openapi.json lists what there is", request.method,
                               request.path));
  }
  admit(exchange, *found);
  co_await (this->*found->handler)(exchange);
}

template <class Work>
asio::awaitable<std::invoke_result_t<Work>> Service::aside(const Exchange& exchange, Work work) {
  return run_on(exchange.request().body.size() > kLargeBody ? large_workers_ : workers_, std::move(work));
}

template <class Work>
asio::awaitable<std::invoke_result_t<Work>> Service::run_on(asio::thread_pool& workers, Work work) {
  std::exception_ptr problem;
  std::optional<std::invoke_result_t<Work>> result;
  co_await asio::post(asio::bind_executor(workers, asio::use_awaitable));
  try {
    result.emplace(work());
  } catch (...) {
    problem = std::current_exception();
  }
  co_await asio::post(asio::bind_executor(io_, asio::use_awaitable));
  if (problem) std::rethrow_exception(problem);
  co_return std::move(*result);
}

template <class Question>
asio::awaitable<std::invoke_result_t<Question, Engine&>> Service::ask_engine(Question question) {
  using Reply = std::invoke_result_t<Question, Engine&>;
  const auto box = std::make_shared<Mailbox<Reply>>(io_.get_executor());
  const bool posted = parts_.loop.post([box, question](Engine& engine) { box->put(question(engine)); });
  if (!posted) throw ApiError(503, "", "shutting_down", "the server is shutting down");
  std::vector<Reply> replies = co_await box->take();
  co_return std::move(replies.front());
}

std::string Service::client_name(const HttpRequest& request, const std::string& user) const {
  if (const auto key = key_number(request)) return fmt::format("key {}", *key);
  return user.empty() ? request.peer : user;
}

// ---- the page and the state of the server ------------------------------------------------------------------------

asio::awaitable<void> Service::page_file(Exchange& exchange) {
  const std::string& path = exchange.request().path;
  const WebFile* file = find_web_file(path == "/" ? "index.html" : path.substr(1));
  if (file == nullptr) throw ApiError(404, "", "not_found", "the page is not built into this program");
  co_await exchange.respond(file_response(*file));
}

asio::awaitable<void> Service::health(Exchange& exchange) {
  co_await exchange.respond(json_response(health_json(closing_), closing_ ? 503 : 200));
}

asio::awaitable<void> Service::version(Exchange& exchange) {
  co_await exchange.respond(json_response(version_json(options_.version)));
}

asio::awaitable<void> Service::metrics(Exchange& exchange) {
  const std::string text =
      parts_.metrics.text(parts_.meter.rates(Clock::now()), connections_ ? connections_() : 0);
  co_await exchange.respond(text_response("text/plain; version=0.0.4; charset=utf-8", text));
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

// ---- answers -----------------------------------------------------------------------------------------------------

asio::awaitable<void> Service::ask_and_answer(Exchange& exchange, AskKind kind) {
  const auto understand = [&] {
    const OrderedJson body = parse_body(exchange.request().body);
    return kind == AskKind::chat ? parse_chat(body, parts_.model) : parse_completion(body, parts_.model);
  };
  Ask ask = co_await aside(exchange, understand);
  refuse_if_closing();  // it may have begun meanwhile
  ask.request.client = client_name(exchange.request(), ask.request.client);
  co_await completions_.answer(exchange, std::move(ask));
}

asio::awaitable<void> Service::chat(Exchange& exchange) {
  co_await ask_and_answer(exchange, AskKind::chat);
}

asio::awaitable<void> Service::complete(Exchange& exchange) {
  co_await ask_and_answer(exchange, AskKind::completion);
}

// POST /requests/ID/fork
asio::awaitable<void> Service::fork(Exchange& exchange) {
  const std::string path = exchange.request().path.substr(std::string_view("/requests/").size());
  if (!path.ends_with("/fork"))
    throw ApiError(404, "", "not_found", "a request can be forked with POST /requests/ID/fork");
  const OrderedJson body = parse_body(exchange.request().body);
  const JsonFields fields(body);
  Ask ask = parse_continuation(body, parts_.model);
  if (ask.choices != 1) bad_field("n", "a fork has one answer; 'n' must be 1");
  if (ask.echo) bad_field("echo", "a fork does not echo its prompt");
  ForkPoint point{path.substr(0, path.size() - 5), uint32_t(fields.integer("choice", 0, 1 << 20).value_or(0)),
                  0};
  const auto at = fields.integer("at", 1, INT32_MAX);
  if (!at)
    bad_field("at",
              "'at' is missing: how many of the request's tokens, prompt and answer, the fork begins with");
  point.at = uint32_t(*at);
  const auto known = [&book = parts_.book, point](Engine&) {
    return book.find_live(point.request, point.choice) || book.find_finished(point.request, point.choice);
  };
  const bool is_known = co_await ask_engine(known);
  refuse_if_closing();
  if (!is_known)
    throw ApiError(404, "", "not_found",
                   fmt::format("the request '{}' is not known (any more)", point.request));
  ask.request.client = client_name(exchange.request(), ask.request.client);
  ask.prompts.emplace_back();  // comes from the other request
  co_await completions_.answer(exchange, std::move(ask), point);
}

asio::awaitable<void> Service::cancel(Exchange& exchange) {
  const std::string id = exchange.request().path.substr(std::string_view("/requests/").size());
  if (!completions_.cancel(id))
    throw ApiError(404, "", "not_found", fmt::format("no request '{}' runs or waits", id));
  co_await exchange.respond(json_response(cancelled_json(id)));
}

asio::awaitable<void> Service::tokenize(Exchange& exchange) {
  const auto work = [&] { return tokenize_json(exchange.request().body, parts_.model); };
  const OrderedJson reply = co_await aside(exchange, work);
  co_await exchange.respond(json_response(reply));
}

asio::awaitable<void> Service::detokenize(Exchange& exchange) {
  const auto work = [&] { return detokenize_json(exchange.request().body, parts_.model); };
  const OrderedJson reply = co_await aside(exchange, work);
  co_await exchange.respond(json_response(reply));
}

// ---- the KV cache and the requests, seen live ----------------------------------------------------------------------

asio::awaitable<void> Service::kv(Exchange& exchange) {
  const uint64_t since = query_number(exchange.request(), "since");
  const auto look = [&book = parts_.book, since](Engine& engine) {
    return kv_report(engine, book, since, Clock::now());
  };
  OrderedJson report = co_await ask_engine(look);
  report["format"] = options_.kv_format;
  co_await exchange.respond(json_response(report));
}

asio::awaitable<void> Service::requests(Exchange& exchange) {
  const uint64_t since = query_number(exchange.request(), "since");
  const auto look = [this, since](Engine& engine) {
    return requests_report(engine, parts_.book, parts_.meter, since, Clock::now());
  };
  const OrderedJson report = co_await ask_engine(look);
  co_await exchange.respond(json_response(report));
}

// GET /requests/ID/steps
asio::awaitable<void> Service::steps(Exchange& exchange) {
  constexpr std::string_view kBefore = "/requests/", kAfter = "/steps";
  std::string id = exchange.request().path.substr(kBefore.size());
  if (!id.ends_with(kAfter))
    throw ApiError(404, "", "not_found", "the passes of a request are at GET /requests/ID/steps");
  id.resize(id.size() - kAfter.size());
  const uint64_t choice = std::min<uint64_t>(query_number(exchange.request(), "choice"), UINT32_MAX);
  const auto look = [&book = parts_.book, id, choice](Engine& engine) {
    return book.steps(engine, id, uint32_t(choice));
  };
  const std::optional<RequestSteps> steps = co_await ask_engine(look);
  if (!steps)
    throw ApiError(404, "", "not_found", fmt::format("the request '{}' is not known (any more)", id));
  // With keys, nobody reads what another has asked and was answered.
  const bool own = options_.api_keys.empty() || client_name(exchange.request(), "") == steps->client;
  const auto tell = [&] { return steps_json(id, *steps, own ? &parts_.model.text->tokenizer : nullptr); };
  const OrderedJson report = co_await aside(exchange, tell);
  co_await exchange.respond(json_response(report));
}

asio::awaitable<void> Service::kv_lookup(Exchange& exchange) {
  const auto work = [&] { return parse_prompt(parse_body(exchange.request().body), parts_.model); };
  const std::vector<TokenId> prompt = co_await aside(exchange, work);
  const auto look = [this, prompt](Engine& engine) {
    return lookup_report(engine, prompt, parts_.meter.limits(), parts_.model.text->tokenizer);
  };
  const OrderedJson report = co_await ask_engine(look);
  co_await exchange.respond(json_response(report));
}

asio::awaitable<void> Service::kv_pin(Exchange& exchange) {
  const auto work = [&] { return parse_prompt(parse_body(exchange.request().body), parts_.model); };
  const std::vector<TokenId> prompt = co_await aside(exchange, work);
  const auto pin = [prompt](Engine& engine) {
    const Engine::Pin pinned = engine.pin(prompt);
    if (pinned.tokens == 0) engine.unpin(pinned.id);
    return pinned;
  };
  const Engine::Pin pinned = co_await ask_engine(pin);
  if (pinned.tokens == 0)
    throw ApiError(409, "prompt", "not_cached",
                   "no full page of this prompt is cached yet: ask with it once, then pin it");
  co_await exchange.respond(json_response(pin_json(pinned)));
}

asio::awaitable<void> Service::kv_unpin(Exchange& exchange) {
  const std::string text = exchange.request().path.substr(std::string_view("/kv/pin/").size());
  const std::optional<uint32_t> number = number_in(text);
  const auto unpin = [number](Engine& engine) { return number && engine.unpin(SequenceId{*number}); };
  const bool found = co_await ask_engine(unpin);
  if (!found) throw ApiError(404, "", "not_found", fmt::format("there is no pin {}", text));
  co_await exchange.respond(json_response(unpinned_json(*number)));
}

asio::awaitable<void> Service::kv_save(Exchange& exchange) {
  if (parts_.snapshots == nullptr)
    throw ApiError(409, "", "no_kv_dir",
                   "this server saves no snapshots: it was started without --kv-dir FOLDER");
  const std::string name = snapshot_name(exchange.request().body);
  if (std::exchange(saving_, true))
    throw ApiError(409, "", "saving", "a snapshot is being saved already: ask again when it is done");
  const Clock::time_point begin = Clock::now();
  std::exception_ptr problem;
  SnapshotFigures saved;
  const auto save = [this, name] { return parts_.snapshots->save(parts_.loop, name); };
  try {
    saved = co_await run_on(saver_, save);
  } catch (...) {
    problem = std::current_exception();
  }
  saving_ = false;
  if (problem) std::rethrow_exception(problem);
  const double seconds = milliseconds_between(begin, Clock::now()) / 1000;
  co_await exchange.respond(json_response(saved_json(name, saved, seconds)));
}

}  // namespace quire
