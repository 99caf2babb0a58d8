#pragma once

#include <memory>
#include <string>

#include "cluster/kv_event_publisher.h"
#include "engine/cache_view.h"
#include "grammar/grammar_budget.h"
#include "server/rate_meter.h"

namespace quire {

// What dashboards read. Any thread may use it.
class Metrics {
 public:
  enum class Names {
    own,
    own_and_vllm
  };  // vllm: also under the names that vLLM's dashboards and gateways know
  Metrics(const std::string& model, Names names);
  ~Metrics();

  // An answer that was completed, with its figures.
  void finished(const Answer& answer, double e2e_ms);
  void cancelled();
  void refused(int status);
  // The engine as it is after a step. Takes the numbers and leaves at once.
  void watch(const EngineFigures& figures);

  // Before anything is asked: shows how much routers are told of blocks. It must outlive the metrics.
  void follow(const KvEventPublisher& events);

  // In Prometheus' text format.
  std::string text(const RateMeter::Rates& rates, uint32_t connections,
                   const grammar::GrammarFigures& grammars);

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace quire
