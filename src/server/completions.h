#pragma once

#include <map>
#include <optional>
#include <string>

#include <boost/asio/any_io_executor.hpp>

#include "engine/engine_loop.h"
#include "openai/openai_request.h"
#include "openai/openai_response.h"
#include "server/http.h"
#include "server/mailbox.h"
#include "server/metrics.h"
#include "server/request_book.h"

namespace quire {

// A place in another request where a new one begins: its first `at` tokens, prompt and answer.
struct ForkPoint {
  std::string request;
  uint32_t choice = 0;
  uint32_t at = 0;
};

struct CompletionLimits {
  uint32_t open_answers = 0;     // that run or wait at once; more are refused
  double request_seconds = 600;  // that one may take in all
};

// Gives asks to the engine and sends what comes back, whole or as a stream. Belongs to the thread of its executor.
class Completions {
 public:
  // What it is given must outlive it.
  Completions(const asio::any_io_executor& executor, const ServedModel& model, EngineLoop& loop,
              RequestBook& book, Metrics& metrics, const CompletionLimits& limits, std::string fingerprint);

  // Throws ApiError if it is refused; afterwards nothing is left of it.
  asio::awaitable<void> answer(Exchange& exchange, Ask ask, std::optional<ForkPoint> fork = std::nullopt);

  // Ends a request that runs or waits; false if there is none of that id that the viewer may see.
  bool cancel(const std::string& id, const Viewer& viewer);

 private:
  // What the engine's thread says.
  struct Delivery {
    uint32_t index = 0;  // of the answer: prompts one after the other, each with its choices
    std::optional<TokenEvent> token;
    std::optional<Answer> answer;
    std::string refused;
  };
  using Box = Mailbox<Delivery>;
  struct Run;
  struct Open {
    EngineLoop::Ticket ticket;
    std::string client;
  };

  EngineLoop::Ticket start(const Ask& ask, const std::string& id, const std::optional<ForkPoint>& fork,
                           const std::shared_ptr<Box>& box);
  asio::awaitable<void> stream(Exchange& exchange, Run& run);
  asio::awaitable<void> collect(Exchange& exchange, Run& run);
  asio::awaitable<void> send_prompts(Exchange& exchange, const Run& run);
  static std::string new_id(AskKind kind);

  asio::any_io_executor executor_;
  const ServedModel& model_;
  EngineLoop& loop_;
  RequestBook& book_;
  Metrics& metrics_;
  const CompletionLimits limits_;
  const std::string fingerprint_;
  uint32_t open_answers_ = 0;
  std::map<std::string, Open> open_;  // by request id
};

}  // namespace quire
