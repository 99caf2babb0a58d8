#pragma once

#include <memory>
#include <string>
#include <vector>

#include <boost/asio/io_context.hpp>

#include "cluster/kv_event_publisher.h"
#include "openai/api_error.h"
#include "server/cache_salts.h"
#include "server/completions.h"
#include "server/counted.h"
#include "server/pin_limits.h"
#include "server/request_attention.h"
#include "server/response_store.h"
#include "server/snapshot_folder.h"
#include "server/workers.h"

namespace quire {

struct ServiceOptions {
  std::vector<std::string> api_keys;  // none: everybody may ask. The first is the operator's
  bool share_prefixes = false;        // keys find each other's pages
  std::optional<HashSecret>
      salt_secret;         // that several servers have; nothing: the folder's of snapshots, or one of its own
  bool inspection = true;  // the cache and the requests can be looked at
  std::optional<int32_t> max_priority;  // of requests; nothing: with keys 0, without any
  PinLimits pins;
  std::vector<std::string> allowed_origins;  // of pages elsewhere; "*": any
  // Only requests to a name of this machine itself: a page elsewhere can make its own name mean 127.0.0.1.
  bool local_names_only = false;
  CompletionLimits limits;
  ResponseStore::Limits responses;
  std::string version;
  std::string kv_format;
  std::string fingerprint;
  std::function<void(Workers::Lane)> before_work;  // for tests
};

// What is served, and by whom. All of it must outlive the service.
struct ServiceParts {
  const ServedModel& model;
  EngineLoop& loop;
  RequestBook& book;
  RateMeter& meter;
  Metrics& metrics;
  const SnapshotFolder* snapshots = nullptr;    // null: none are saved
  Recorder* recorder = nullptr;                 // null: nothing is recorded
  const KvEventPublisher* kv_events = nullptr;  // null: nobody is told of blocks
};

// The endpoints. Belongs to the thread of its io_context.
class Service {
 public:
  Service(asio::io_context& io, const ServiceParts& parts, ServiceOptions options);

  // Judges a request by its head: who may ask, and for what. What it lets in is answered, with an error if need be.
  HttpServer::Admission admit(Exchange& exchange);
  // From now on routers are told to send nothing more. What comes is answered all the same.
  void drain() { draining_ = true; }
  // From now on new requests are refused.
  void close() { closing_ = true; }
  // Once nobody is served any more: whether all threads are done by then. Else whoever destroys the service waits for them.
  bool finish_by(Clock::time_point latest) { return workers_.finish_by(latest); }
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
    Api api = Api::openai;  // whose words errors are written in
  };
  static const std::vector<Route>& routes();
  // Of a path that is known.
  static std::string allowed_methods(std::string_view path);

  // Throws ApiError if there is none.
  const Route& route_of(Exchange& exchange) const;
  void check_key(const Exchange& exchange, const Route& route) const;
  void refuse_if_closing() const;
  void refuse_if_many_reports() const;
  void check_host(const HttpRequest& request) const;
  void allow_origin(Exchange& exchange) const;
  asio::awaitable<void> handle(Exchange& exchange, const Route& route);
  HttpResponse refusal(const ApiError& error, Api api);

  asio::awaitable<void> options(Exchange& exchange);
  asio::awaitable<void> page_file(Exchange& exchange);
  asio::awaitable<void> health(Exchange& exchange);
  asio::awaitable<void> version(Exchange& exchange);
  asio::awaitable<void> server_info(Exchange& exchange);
  asio::awaitable<void> model_info(Exchange& exchange);
  asio::awaitable<void> metrics(Exchange& exchange);
  asio::awaitable<void> models(Exchange& exchange);
  asio::awaitable<void> chat(Exchange& exchange);
  asio::awaitable<void> complete(Exchange& exchange);
  asio::awaitable<void> stream_again(Exchange& exchange);
  asio::awaitable<void> respond_to_input(Exchange& exchange);
  asio::awaitable<void> stored_response(Exchange& exchange);
  asio::awaitable<void> delete_response(Exchange& exchange);
  asio::awaitable<void> anthropic_messages(Exchange& exchange);
  asio::awaitable<void> anthropic_count(Exchange& exchange);
  asio::awaitable<void> ollama_chat(Exchange& exchange);
  asio::awaitable<void> ollama_generate(Exchange& exchange);
  asio::awaitable<void> ollama_tags(Exchange& exchange);
  asio::awaitable<void> ollama_running(Exchange& exchange);
  asio::awaitable<void> ollama_show(Exchange& exchange);
  asio::awaitable<void> ollama_version(Exchange& exchange);
  asio::awaitable<void> embeddings(Exchange& exchange);
  asio::awaitable<void> rerank(Exchange& exchange);
  asio::awaitable<void> ollama_embed(Exchange& exchange);
  asio::awaitable<void> ollama_embeddings(Exchange& exchange);
  asio::awaitable<void> tokenize(Exchange& exchange);
  asio::awaitable<void> detokenize(Exchange& exchange);
  asio::awaitable<void> tokenizer_info(Exchange& exchange);
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

  // `read`: of a body, for the model that is served.
  using Reader = Ask (*)(const OrderedJson&, const ServedModel&);
  asio::awaitable<void> ask_and_answer(Exchange& exchange, Reader read);
  // The same of what becomes vectors or scores: `write`s, for JSON, what became of all of it.
  template <class Asked, class Written>
  asio::awaitable<void> ask_and_gather(Exchange& exchange,
                                       Asked (*read)(const OrderedJson&, const ServedModel&),
                                       Written (*write)(const Asked&, const std::vector<WholeAnswer>&,
                                                        const Usage&, const ServedModel&));
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
    std::optional<PruningOptions> pruning;  // of the document that it begins with; nothing: it has none
  };
  asio::awaitable<PromptBody> read_prompt(const Exchange& exchange);
  // Runs `work`, which understands a request, where it does not hold up the streams.
  template <class Work>
  asio::awaitable<std::invoke_result_t<Work>> aside(const Exchange& exchange, Work work) {
    return workers_.run(Workers::lane_for(exchange.request().body.size()), std::move(work));
  }
  // Runs `question` on the engine's thread, between two steps. What it says is plain data: JSON and text are made of it on
  // the threads of the workers.
  template <class Question>
  asio::awaitable<std::invoke_result_t<Question, Engine&>> ask_engine(Question question);

  asio::io_context& io_;
  ServiceParts parts_;
  ServiceOptions options_;
  CacheSalts salts_;
  ResponseStore responses_;  // before the workers, who write to it
  Workers workers_;
  Completions completions_;
  HeadLooks looks_;
  uint32_t saves_ = 0, reports_ = 0;  // that are being made
  std::function<uint32_t()> connections_;
  bool draining_ = false, closing_ = false;
};

template <class Question>
asio::awaitable<std::invoke_result_t<Question, Engine&>> Service::ask_engine(Question question) {
  using Reply = std::invoke_result_t<Question, Engine&>;
  static_assert(!std::is_same_v<Reply, OrderedJson> && !std::is_same_v<Reply, std::string>,
                "while the engine's thread writes JSON nobody's token is computed");
  struct Outcome {
    std::optional<Reply> reply;
    std::exception_ptr problem;
  };
  const auto box = std::make_shared<Mailbox<Outcome>>(io_.get_executor());
  const auto job = [box, question](Engine& engine) {
    Outcome outcome;
    try {
      outcome.reply.emplace(question(engine));
    } catch (...) {
      outcome.problem = std::current_exception();
    }
    box->put(std::move(outcome));
  };
  const bool posted = parts_.loop.post(job);
  if (!posted) throw ApiError(503, "", "shutting_down", "the server is shutting down");
  std::vector<Outcome> outcomes = co_await box->take();
  if (outcomes.front().problem) std::rethrow_exception(outcomes.front().problem);
  co_return std::move(*outcomes.front().reply);
}

}  // namespace quire
