#include "server/server.h"

#include <algorithm>
#include <chrono>
#include <csignal>
#include <thread>

#include <boost/asio/post.hpp>
#include <boost/asio/signal_set.hpp>
#include <boost/asio/steady_timer.hpp>

#include "base/clock.h"

namespace quire {
namespace {

using boost::system::error_code;
constexpr std::chrono::milliseconds kFlushTime{2000}, kFlushLook{10};

}  // namespace

struct Server::State {
  State(const LoadedModel& loaded, std::unique_ptr<Engine> engine, const std::string& name,
        const MachineLimits& limits, const ServerOptions& given)
      : options(given),
        snapshots(folder_of(loaded, given)),
        restored(given.kv_restore.empty() ? "" : snapshots->restore(*engine, given.kv_restore)),
        model{name,          &loaded.text(), loaded.spec().vocab, engine->context(), seconds_since_1970(),
              given.pruning, given.evaluator},
        book(Clock::now()),
        meter(limits),
        metrics(name, given.metric_names),
        loop(std::move(engine), [this](const Engine& e) { watch(e); }),
        service(io, {model, loop, book, meter, metrics, snapshots.get()}, given.service),
        http(io, given.host, given.port, given.http,
             [this](Exchange& exchange) { return service.handle(exchange); }),
        signals(io),
        flush(io) {
    service.count_connections([this] { return http.connections(); });
  }
  ~State() {
    if (finisher.joinable()) finisher.join();
  }

  static std::unique_ptr<const SnapshotFolder> folder_of(const LoadedModel& loaded,
                                                         const ServerOptions& given) {
    if (given.kv_folder.empty()) return nullptr;
    return std::make_unique<SnapshotFolder>(given.kv_folder, loaded.kv_identity());
  }

  void watch(const Engine& engine) {
    for (const StepRecord& step : engine.steps().since(std::exchange(seen_steps, engine.steps().total())))
      meter.add(step);
    metrics.watch(engine);
  }

  void wait_for_signals() {
    signals.async_wait([this](error_code problem, int) {
      if (problem) return;
      if (closing) {
        deadline = Clock::now();
        loop.hasten(deadline);
      }
      begin_closing();
      wait_for_signals();
    });
  }

  void begin_closing() {
    if (std::exchange(closing, true)) return;
    service.close();
    http.stop_accepting();
    deadline = Clock::now() + std::chrono::duration_cast<Clock::duration>(
                                  std::chrono::duration<double>(options.grace_seconds));
    finisher = std::thread([this, until = deadline] {
      loop.shut_down(until);
      asio::post(io, [this] { flush_then_stop(Clock::now() + kFlushTime); });
    });
  }

  // The last words are on their way: the answers that were cut short need to be told so. Requests that are still being
  // understood and readers that are slow have as long as the grace lasts.
  void flush_then_stop(Clock::time_point latest) {
    if (http.exchanges() == 0 || Clock::now() >= std::max(latest, deadline)) {
      io.stop();
      return;
    }
    flush.expires_after(kFlushLook);
    flush.async_wait([this, latest](error_code problem) {
      if (!problem) flush_then_stop(latest);
    });
  }

  const ServerOptions options;
  const std::unique_ptr<const SnapshotFolder> snapshots;
  const std::string restored;
  const ServedModel model;
  uint64_t seen_steps = 0;  // engine thread only, as the book
  RequestBook book;
  RateMeter meter;
  Metrics metrics;
  asio::io_context io{1};
  EngineLoop loop;
  Service service;
  HttpServer http;
  asio::signal_set signals;
  asio::steady_timer flush;
  bool closing = false;
  Clock::time_point deadline;  // of a shutdown that has begun
  std::thread finisher;
};

Server::Server(const LoadedModel& model, std::unique_ptr<Engine> engine, const std::string& model_name,
               const MachineLimits& limits, const ServerOptions& options)
    : state_(std::make_unique<State>(model, std::move(engine), model_name, limits, options)) {}

Server::~Server() = default;

uint16_t Server::port() const {
  return state_->http.port();
}

const std::string& Server::restored() const {
  return state_->restored;
}

void Server::run() {
  state_->signals.add(SIGINT);
  state_->signals.add(SIGTERM);
  state_->wait_for_signals();
  state_->io.run();
}

void Server::stop() {
  asio::post(state_->io, [this] { state_->begin_closing(); });
}

}  // namespace quire
