#include "server/server.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <optional>
#include <thread>
#include <utility>

#include <boost/asio/executor_work_guard.hpp>
#include <boost/asio/post.hpp>
#include <boost/asio/signal_set.hpp>
#include <boost/asio/steady_timer.hpp>

#include "base/clock.h"

namespace quire {
namespace {

using boost::system::error_code;
constexpr std::chrono::milliseconds kFlushTime{2000}, kFlushLook{10};
constexpr std::chrono::milliseconds kPatience{5000};  // with threads that should have ended
constexpr std::chrono::seconds kLook{1};

}  // namespace

struct Server::State {
  State(const LoadedModel& loaded, std::unique_ptr<Engine> engine, const std::string& name,
        const MachineLimits& limits, const ServerOptions& given)
      : options(given),
        snapshots(folder_of(loaded, given)),
        restored(given.kv_restore.empty() ? "" : snapshots->restore(*engine, given.kv_restore)),
        model(with_chat_format({.name = name,
                                .text = &loaded.text(),
                                .vocab = loaded.spec().vocab,
                                .context = engine->context(),
                                .created = seconds_since_1970(),
                                .pruning = given.pruning,
                                .choose_kept = given.choose_kept,
                                .chooses_kept = given.choose_kept != nullptr,
                                .budget = given.budget,
                                .pins_system = given.pins_system,
                                .evaluator = given.evaluator,
                                .pooling = given.pooling ? given.pooling : said_pooling(loaded.file()),
                                .width = loaded.spec().dim})),
        book(Clock::now(), {given.service.api_keys.size()}),
        meter(limits),
        metrics(name, given.metric_names),
        recorder(recorder_of(loaded, *engine, given)),
        loop(std::move(engine), [this](const Engine& e) { watch(e); }),
        service(io, {model, loop, book, meter, metrics, snapshots.get(), recorder.get(), given.kv_events},
                given.service),
        http(io, given.host, given.port, given.http,
             [this](Exchange& exchange) { return service.admit(exchange); }),
        signals(io),
        flush(io),
        last_call(io),
        drain(io) {
    if (given.kv_events != nullptr) metrics.follow(*given.kv_events);
    service.count_connections([this] { return http.connections(); });
  }
  ~State() {
    if (finisher.joinable()) finisher.join();
  }

  static std::unique_ptr<const SnapshotFolder> folder_of(const LoadedModel& loaded,
                                                         const ServerOptions& given) {
    if (given.kv_folder.empty()) return nullptr;
    return std::make_unique<SnapshotFolder>(given.kv_folder, loaded.kv_identity(), given.snapshots);
  }

  static std::unique_ptr<Recorder> recorder_of(const LoadedModel& loaded, const Engine& engine,
                                               const ServerOptions& given) {
    if (given.record.path.empty()) return nullptr;
    return std::make_unique<Recorder>(given.record, RecordingHead{.version = given.service.version,
                                                                  .model_path = given.model_path,
                                                                  .identity = loaded.kv_identity(),
                                                                  .kv = given.service.kv_format,
                                                                  .context = engine.context()});
  }

  void watch(const Engine& engine) {
    for (const StepRecord& step : engine.steps().since(std::exchange(seen_steps, engine.steps().total())))
      meter.add(step);
    if (!engine.lost().empty()) {
      give_up(engine.lost());
      return;
    }
    // Asking the device takes longer than a step may.
    if (const Clock::time_point now = Clock::now(); now >= next_look) {
      device_memory = engine.device_memory();
      next_look = now + kLook;
    }
    EngineFigures figures = figures_of(engine);
    figures.device = device_memory;
    metrics.watch(figures);
  }

  // Without a device there is nothing to serve. On the engine's thread, and perhaps several times.
  void give_up(const std::string& why) {
    asio::post(io, [this, why] {
      lost = why;
      begin_closing();
    });
  }

  void wait_for_signals() {
    signals.async_wait([this](error_code problem, int signal) {
      if (problem) return;
      if (closing) {
        deadline = Clock::now();
        loop.hasten(deadline);
        call_last();
      }
      if (signal == SIGTERM && options.drain_seconds > 0 && !draining) {
        begin_draining();
      } else {
        begin_closing();
      }
      wait_for_signals();
    });
  }

  // Whoever sends requests here finds out before they are refused.
  void begin_draining() {
    draining = true;
    service.drain();
    drain.expires_after(
        std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(options.drain_seconds)));
    drain.async_wait([this](error_code problem) {
      if (!problem) begin_closing();
    });
  }

  void begin_closing() {
    if (std::exchange(closing, true)) return;
    service.close();
    http.stop_accepting();
    deadline = Clock::now() + std::chrono::duration_cast<Clock::duration>(
                                  std::chrono::duration<double>(options.grace_seconds));
    call_last();
    finisher = std::thread([this, until = deadline] {
      loop.shut_down(until);
      engine_ended = true;
      asio::post(io, [this] { flush_then_stop(Clock::now() + kFlushTime); });
    });
  }

  // Whoever has not come back long after the deadline never may: the end does not wait for him.
  void call_last() {
    constexpr double kLongest = 1e7;  // seconds: a timer cannot count for ever
    const double left = std::chrono::duration<double>(deadline - Clock::now()).count();
    last_call.expires_after(kFlushTime + kPatience +
                            std::chrono::milliseconds(int64_t(1000 * std::clamp(left, 0.0, kLongest))));
    last_call.async_wait([this](error_code problem) {
      if (!problem) io.stop();
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
  uint64_t seen_steps = 0;                    // engine thread only, as the book
  std::optional<DeviceMemory> device_memory;  // as it was a moment ago; engine thread only, as the next
  Clock::time_point next_look;
  RequestBook book;
  RateMeter meter;
  Metrics metrics;
  const std::unique_ptr<Recorder> recorder;  // null: nothing is recorded
  asio::io_context io{1};
  // Ends when it is told to, even if everything that it had to do was lost for want of memory.
  asio::executor_work_guard<asio::io_context::executor_type> until_stopped{io.get_executor()};
  EngineLoop loop;
  Service service;
  HttpServer http;
  asio::signal_set signals;
  bool heeds_signals = false;
  asio::steady_timer flush, last_call, drain;
  bool draining = false, closing = false;
  std::atomic<bool> engine_ended = false;
  bool stuck = false;
  std::string lost;            // why there is no device any more
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

void Server::heed_signals() {
  if (std::exchange(state_->heeds_signals, true)) return;
  state_->signals.add(SIGINT);
  state_->signals.add(SIGTERM);
  state_->wait_for_signals();
}

void Server::run() {
  heed_signals();
  while (!state_->io.stopped()) {
    try {
      state_->io.run_for(kLook);
      state_->http.keep_accepting();
    } catch (const std::exception&) {  // what could not go on for want of memory is over; the others go on
    }
  }
  const bool all_back = state_->service.finish_by(Clock::now() + kPatience);
  state_->stuck = !all_back || (state_->closing && !state_->engine_ended);
}

void Server::run_to_the_end() {
  run();
  if (!state_->stuck) return;
  std::fputs("a request is still being worked on; ended without waiting for it\n", stderr);
  if (!lost().empty()) std::fprintf(stderr, "quire: %s\n", lost().c_str());
  std::fflush(nullptr);
  std::_Exit(lost().empty() ? 0 : 1);
}

const std::string& Server::lost() const {
  return state_->lost;
}

void Server::stop() {
  asio::post(state_->io, [this] { state_->begin_closing(); });
}

}  // namespace quire
