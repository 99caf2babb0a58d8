#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>

#include "cluster/kv_event_publisher.h"
#include "engine/engine.h"
#include "engine/loaded_model.h"
#include "server/http.h"
#include "server/metrics.h"
#include "server/rate_meter.h"
#include "server/service.h"

namespace quire {

struct ServerOptions {
  std::string host = "127.0.0.1";
  uint16_t port = 8080;  // 0: any that is free
  HttpLimits http;
  ServiceOptions service;
  Metrics::Names metric_names = Metrics::Names::own;
  double drain_seconds = 0;               // after SIGTERM: requests are taken, /health says 503
  double grace_seconds = 30;              // that running answers get when it is told to stop
  std::string kv_folder;                  // of snapshots; empty: none are saved
  SnapshotLimits snapshots;               // in it
  std::string kv_restore;                 // the one to begin with; empty: none. Needs a folder
  std::optional<PruningOptions> pruning;  // of requests that do not say it themselves
  // What a prompt keeps of requests that do not say it (ServedModel::choose_kept); empty: all, or as `pruning` says.
  std::function<std::optional<PruningOptions>(std::span<const TokenId>)> choose_kept;
  std::optional<BudgetOptions> budget;  // the same as pruning
  bool pins_system = true;              // where nobody says how much of a budget is pinned
  EvaluatorHeads evaluator;             // of the model, if they are known
  std::optional<Pooling> pooling;       // of texts that become vectors; nothing: as the model says
  RecorderOptions record;               // to this file; no path: nothing is recorded
  std::string model_path;               // as a recording names it
  // Which the engine tells already; it must outlive the server. Null: nobody is told of blocks.
  const KvEventPublisher* kv_events = nullptr;
};

// One model behind an OpenAI-compatible API and a page.
class Server {
 public:
  // The model must outlive it. Throws Error if it cannot listen.
  Server(const LoadedModel& model, std::unique_ptr<Engine> engine, const std::string& model_name,
         const MachineLimits& limits, const ServerOptions& options);
  ~Server();

  uint16_t port() const;
  // What came of the snapshot that it was to begin with: words for a person, or none.
  const std::string& restored() const;
  // From now on SIGINT and SIGTERM do not end the process but what run() does, also when they come before it. run() does it itself.
  void heed_signals();
  // Serves until stop(), SIGINT or SIGTERM, or until its device is lost, and returns when all is done. A second signal ends at once.
  void run();
  // The same for a process that ends with it: if some thread has not come back when all is done, it ends the process
  // there, with a sentence, because destroying the server would wait for that thread, and perhaps for ever.
  void run_to_the_end();
  // After run(): why it ended by itself; empty: it was told to.
  const std::string& lost() const;
  // Any thread may call it.
  void stop();

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace quire
