#include "server/service.h"

#include <algorithm>
#include <cctype>

#include "base/error.h"
#include "base/random_bytes.h"
#include "server/answer_writers.h"
#include "server/responses.h"
#include "server/web_files.h"

namespace quire {
namespace {

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

bool matches(std::string_view pattern, std::string_view path) {
  if (!pattern.ends_with('*')) return pattern == path;
  pattern.remove_suffix(1);
  return path.starts_with(pattern) && path.size() > pattern.size();
}

}  // namespace

Service::Service(asio::io_context& io, const ServiceParts& parts, ServiceOptions options)
    : io_(io),
      parts_(parts),
      options_(std::move(options)),
      salts_(options_.salt_secret         ? *options_.salt_secret
             : parts.snapshots != nullptr ? parts.snapshots->secret()
                                          : random_bytes<sizeof(HashSecret)>(),
             options_.api_keys,
             options_.share_prefixes ? CacheSalts::Sharing::between_keys : CacheSalts::Sharing::within_keys),
      responses_(options_.responses),
      workers_(io, options_.before_work),
      completions_(io.get_executor(),
                   {parts.model, parts.loop, parts.book, parts.metrics, workers_, parts.recorder},
                   options_.limits, options_.fingerprint),
      looks_(io.get_executor(), parts.loop, {options_.api_keys.size()}) {}

const std::vector<Service::Route>& Service::routes() {
  static const std::vector<Route> routes = {
      {"GET", "/", &Service::page_file, Access::open},
      {"GET", "/health", &Service::health, Access::open},
      {"GET", "/version", &Service::version},
      {"GET", "/server_info", &Service::server_info},
      {"GET", "/model_info", &Service::model_info},
      {"GET", "/metrics", &Service::metrics},
      {"GET", "/v1/models", &Service::models},
      {"GET", "/v1/models/*", &Service::models},
      {"POST", "/v1/chat/completions", &Service::chat},
      {"POST", "/v1/completions", &Service::complete},
      {"POST", "/v1/embeddings", &Service::embeddings},
      {"POST", "/v1/rerank", &Service::rerank},
      {"POST", "/v2/rerank", &Service::rerank},
      {"POST", "/rerank", &Service::rerank},
      {"GET", "/v1/stream/*", &Service::stream_again},
      {"POST", "/v1/responses", &Service::respond_to_input},
      {"GET", "/v1/responses/*", &Service::stored_response},
      {"DELETE", "/v1/responses/*", &Service::delete_response},
      {"POST", "/v1/messages", &Service::anthropic_messages, Access::key, Api::anthropic},
      {"POST", "/v1/messages/count_tokens", &Service::anthropic_count, Access::key, Api::anthropic},
      {"POST", "/api/chat", &Service::ollama_chat, Access::key, Api::ollama},
      {"POST", "/api/generate", &Service::ollama_generate, Access::key, Api::ollama},
      {"POST", "/api/embed", &Service::ollama_embed, Access::key, Api::ollama},
      {"POST", "/api/embeddings", &Service::ollama_embeddings, Access::key, Api::ollama},
      {"GET", "/api/tags", &Service::ollama_tags, Access::key, Api::ollama},
      {"GET", "/api/ps", &Service::ollama_running, Access::key, Api::ollama},
      {"POST", "/api/show", &Service::ollama_show, Access::key, Api::ollama},
      {"GET", "/api/version", &Service::ollama_version, Access::key, Api::ollama},
      {"POST", "/tokenize", &Service::tokenize},
      {"POST", "/detokenize", &Service::detokenize},
      {"GET", "/tokenizer_info", &Service::tokenizer_info},
      {"GET", "/kv", &Service::kv, Access::inspection},
      {"POST", "/kv/lookup", &Service::kv_lookup, Access::inspection},
      {"POST", "/kv/pin", &Service::kv_pin},
      {"DELETE", "/kv/pin/*", &Service::kv_unpin},
      {"POST", "/kv/save", &Service::kv_save},
      {"GET", "/requests", &Service::requests, Access::inspection},
      {"GET", "/requests/*", &Service::look_at_request, Access::inspection},
      {"POST", "/requests/*", &Service::fork},
      {"DELETE", "/requests/*", &Service::cancel},
  };
  return routes;
}

HttpServer::Admission Service::admit(Exchange& exchange) {
  HttpServer::Admission admission;
  Api api = Api::openai;
  try {
    check_host(exchange.request());
    allow_origin(exchange);
    const Route& route = route_of(exchange);
    api = route.api;
    check_key(exchange, route);
    admission.handler = [this, &route](Exchange& admitted) { return handle(admitted, route); };
  } catch (const ApiError& error) {
    admission.refusal = refusal(error, api);
  }
  return admission;
}

// The routes live as long as the program.
asio::awaitable<void> Service::handle(Exchange& exchange, const Route& route) {
  std::optional<ApiError> refused;
  try {
    co_await (this->*route.handler)(exchange);
  } catch (const ApiError& error) {
    refused = error;
  } catch (const Error& error) {
    refused = ApiError(400, "", "invalid_value", error.what());
  } catch (const std::bad_alloc&) {
    refused = ApiError(503, "", "out_of_memory", "there is not enough memory for this request");
  }
  if (!refused) co_return;
  HttpResponse response = refusal(*refused, route.api);
  if (!exchange.responded()) co_await exchange.respond(std::move(response));
}

// Counts it, too.
HttpResponse Service::refusal(const ApiError& error, Api api) {
  parts_.metrics.refused(error.status());
  HttpResponse response = json_response(error_json(api, error), error.status());
  // OpenAI's clients try again after any 5xx; what was ended on purpose, or took too long, would only do so again.
  if (!error.worth_retrying()) response.headers.emplace_back("X-Should-Retry", "false");
  if (error.status() == 429 || (error.status() == 503 && error.worth_retrying()))
    response.headers.emplace_back("Retry-After", "1");
  if (error.status() == 401) response.headers.emplace_back("WWW-Authenticate", "Bearer");
  return response;
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
  // Clients of Anthropic's send it in a header of its own, the newer ones as all others do.
  const std::string header = request.header("authorization");
  const std::string secret = has_bearer(header) ? header.substr(7) : request.header("x-api-key");
  if (secret.empty()) return std::nullopt;
  std::optional<size_t> number;
  for (size_t i = 0; i < options_.api_keys.size(); ++i) {
    if (same_secret(options_.api_keys[i], secret) && !number) number = i + 1;
  }
  return number;
}

void Service::check_key(const Exchange& exchange, const Route& route) const {
  if (route.access != Access::open && !options_.api_keys.empty() && !key_number(exchange.request())) {
    throw ApiError(401, "", "invalid_api_key",
                   "the API key is missing or wrong: send 'Authorization: Bearer KEY'");
  }
  if (route.access == Access::inspection && !options_.inspection)
    throw ApiError(
        404, "", "inspection_off",
        "this server does not show its cache and its requests: it was started with --no-inspection");
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

const Service::Route& Service::route_of(Exchange& exchange) const {
  static constexpr Route kOptions{"OPTIONS", "", &Service::options, Access::open};
  static constexpr Route kFile{"GET", "", &Service::page_file, Access::open};
  const HttpRequest& request = exchange.request();
  bool path_known = false;
  for (const Route& route : routes()) {
    if (!matches(route.path, request.path)) continue;
    path_known = true;
    if (request.method == route.method) return route;
  }
  if (path_known && request.method == "OPTIONS") return kOptions;
  if (request.method == "GET" && request.path.starts_with('/') &&
      find_web_file(request.path.substr(1)) != nullptr)
    return kFile;
  if (path_known) exchange.add_header("Allow", allowed_methods(request.path));
  throw ApiError(
      path_known ? 405 : 404, "", path_known ? "method_not_allowed" : "not_found",
      fmt::format("there is no {} {} here; /openapi.json lists what there is", request.method, request.path));
}

asio::awaitable<void> Service::options(Exchange& exchange) {
  HttpResponse nothing = text_response("", "");
  nothing.status = 204;
  co_await exchange.respond(std::move(nothing));
}

std::string Service::client_name(const HttpRequest& request, const std::string& user) const {
  if (const auto key = key_number(request)) return fmt::format("key {}", *key);
  return user.empty() ? request.peer : user;
}

Viewer Service::viewer(const HttpRequest& request) const {
  if (options_.api_keys.empty()) return {};
  const size_t key = key_number(request).value();  // it was admitted
  return {.client = client_name(request, ""), .salt_key = salts_.of_key(key)};
}

CacheSalt Service::salt_of(const HttpRequest& request, const std::string& cache_salt) const {
  return salts_.of(options_.api_keys.empty() ? 0 : key_number(request).value(), cache_salt);
}

void Service::admit_ask(const HttpRequest& request, Ask& ask) const {
  const int32_t most = options_.max_priority.value_or(options_.api_keys.empty() ? INT32_MAX : 0);
  if (ask.request.priority > most)
    bad_field("quire.priority", "'quire.priority' is {}, but this server takes at most {} (--max-priority)",
              ask.request.priority, most);
  ask.request.client = client_name(request, ask.request.client);
  ask.request.salt = salt_of(request, ask.cache_salt);
}

}  // namespace quire
