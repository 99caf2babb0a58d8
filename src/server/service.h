#pragma once

#include <memory>
#include <string>
#include <vector>

#include <boost/asio/bind_executor.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/post.hpp>
#include <boost/asio/thread_pool.hpp>
#include <boost/asio/use_awaitable.hpp>

#include "openai/api_error.h"
#include "server/cache_salts.h"
#include "server/completions.h"
#include "server/pin_limits.h"
#include "server/request_attention.h"
#include "server/snapshot_folder.h"

namespace quire {

struct ServiceOptions {
  std::vector<std::string> api_keys;    // none: everybody may ask. The first is the operator's
  bool share_prefixes = false;          // keys find each other's pages
  bool inspection = true;               // the cache and the requests can be looked at
  std::optional<int32_t> max_priority;  // of requests; nothing: with keys 0, without any
  PinLimits pins;
  std::vector<std::string> allowed_origins;  // of pages elsewhere; "*": any
  // Only requests to a name of this machine itself: a page elsewhere can make its own name mean 127.0.0.1.
  bool local_names_only = false;
  CompletionLimits limits;
  std::string version;
  std::string kv_format;
  std::string fingerprint;
};

// What is served, and by whom. All of it must outlive the service.
struct ServiceParts {
  const ServedModel& model;
  EngineLoop& loop;
  RequestBook& book;
  RateMeter& meter;
  Metrics& metrics;
  const SnapshotFolder* snapshots = nullptr;  // null: none are saved
};

// The endpoints. Belongs to the thread of its io_context.
class Service {
 public:
  Service(asio::io_context& io, const ServiceParts& parts, ServiceOptions options);
  ~Service();

  // Answers one request, with an error if need be.
  asio::awaitable<void> handle(Exchange& exchange);
  // From now on new requests are refused.
  void close() { closing_ = true; }
  void count_connections(std::function<uint32_t()> count) { connections_ = std::move(count); }

 private:
  using Handler = asio::awaitable<void> (Service::*)(Exchange&);
  enum class Access : uint8_t {
    open,        // no key is needed
    key,         // a key, if there are any
    inspection,  // the same, and only where the cache and the requests can be looked at
  };
  struct Route {
    const char* method;
    const char* path;  // one that ends in * takes all that begin so
    Handler handler;
    Access access = Access::key;
  };
  static const std::vector<Route>& routes();
  // Of a path that is known.
  static std::string allowed_methods(std::string_view path);

  void admit(Exchange& exchange, const Route& route) const;
  void refuse_if_closing() const;
  void check_host(const HttpRequest& request) const;
  void allow_origin(Exchange& exchange) const;
  asio::awaitable<void> dispatch(Exchange& exchange);
  asio::awaitable<void> refuse(Exchange& exchange, const ApiError& error);

  asio::awaitable<void> page_file(Exchange& exchange);
  asio::awaitable<void> health(Exchange& exchange);
  asio::awaitable<void> version(Exchange& exchange);
  asio::awaitable<void> metrics(Exchange& exchange);
  asio::awaitable<void> models(Exchange& exchange);
  asio::awaitable<void> chat(Exchange& exchange);
  asio::awaitable<void> complete(Exchange& exchange);
  asio::awaitable<void> tokenize(Exchange& exchange);
  asio::awaitable<void> detokenize(Exchange& exchange);
  asio::awaitable<void> kv(Exchange& exchange);
  asio::awaitable<void> kv_lookup(Exchange& exchange);
  asio::awaitable<void> kv_pin(Exchange& exchange);
  asio::awaitable<void> kv_unpin(Exchange& exchange);
  asio::awaitable<void> kv_save(Exchange& exchange);
  asio::awaitable<void> requests(Exchange& exchange);
  asio::awaitable<void> look_at_request(Exchange& exchange);
  asio::awaitable<void> steps(Exchange& exchange, std::string id);
  asio::awaitable<void> attention(Exchange& exchange, std::string id);
  asio::awaitable<void> fork(Exchange& exchange);
  asio::awaitable<void> cancel(Exchange& exchange);

  asio::awaitable<void> ask_and_answer(Exchange& exchange, AskKind kind);
  // Which of the API keys the client has, from 1 on.
  std::optional<size_t> key_number(const HttpRequest& request) const;
  std::string client_name(const HttpRequest& request, const std::string& user) const;
  Viewer viewer(const HttpRequest& request) const;
  CacheSalt salt_of(const HttpRequest& request, const std::string& cache_salt) const;
  // Gives the request its client, its salt and no more priority than it may have.
  void admit_ask(const HttpRequest& request, Ask& ask) const;
  // A body that is a prompt, and what else is in it.
  struct PromptBody {
    std::vector<TokenId> prompt;
    std::string cache_salt;
    std::optional<double> ttl_seconds;
  };
  asio::awaitable<PromptBody> read_prompt(const Exchange& exchange);
  // Runs `work`, which understands a request, where it does not hold up the streams.
  template <class Work>
  asio::awaitable<std::invoke_result_t<Work>> aside(const Exchange& exchange, Work work);
  template <class Work>
  asio::awaitable<std::invoke_result_t<Work>> run_on(asio::thread_pool& workers, Work work);
  // Runs `question` on the engine's thread, between two steps.
  template <class Question>
  asio::awaitable<std::invoke_result_t<Question, Engine&>> ask_engine(Question question);

  static constexpr size_t kLargeBody =
      64 << 10;  // bytes that take long enough to understand that others would notice

  asio::io_context& io_;
  ServiceParts parts_;
  ServiceOptions options_;
  CacheSalts salts_;
  Completions completions_;
  HeadLooks looks_;
  asio::thread_pool workers_{1};        // parses, renders and tokenizes
  asio::thread_pool large_workers_{1};  // the same for large requests: only they wait for one another
  asio::thread_pool saver_{1};          // writes snapshots
  bool saving_ = false;
  std::function<uint32_t()> connections_;
  bool closing_ = false;
};

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
  struct Outcome {
    std::optional<Reply> reply;
    std::exception_ptr problem;
  };
  const auto box = std::make_shared<Mailbox<Outcome>>(io_.get_executor());
  const bool posted = parts_.loop.post([box, question](Engine& engine) {
    Outcome outcome;
    try {
      outcome.reply.emplace(question(engine));
    } catch (...) {
      outcome.problem = std::current_exception();
    }
    box->put(std::move(outcome));
  });
  if (!posted) throw ApiError(503, "", "shutting_down", "the server is shutting down");
  std::vector<Outcome> outcomes = co_await box->take();
  if (outcomes.front().problem) std::rethrow_exception(outcomes.front().problem);
  co_return std::move(*outcomes.front().reply);
}

}  // namespace quire
