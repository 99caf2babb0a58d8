#pragma once

#include <atomic>
#include <map>
#include <optional>
#include <string>

#include <boost/asio/any_io_executor.hpp>

#include "engine/engine_loop.h"
#include "openai/openai_request.h"
#include "openai/openai_response.h"
#include "replay/recorder.h"
#include "server/http.h"
#include "server/kept_streams.h"
#include "server/mailbox.h"
#include "server/metrics.h"
#include "server/request_book.h"
#include "server/workers.h"

namespace quire {

// A place in another request where a new one begins: its first `at` tokens, prompt and answer.
struct ForkPoint {
  std::string request;
  uint32_t choice = 0;
  uint32_t at = 0;
};

struct CompletionLimits {
  uint32_t open_answers = 0;       // that the engine computes or will; more are refused
  double request_seconds = 600;    // that one may take in all
  double keep_alive_seconds = 15;  // after which a stream that has nothing to say says so
  // That wait for the reader of a stream. Words are joined and take no more than their letters; what cannot be joined
  // (logprobs) ends with an error when there is more.
  size_t unread_bytes = size_t(2) << 20;
  StreamLimits kept;  // streams that can be read again
};

// Gives asks to the engine and sends what comes back, whole or as a stream. Belongs to the thread of its executor.
class Completions {
 public:
  // All of it must outlive it.
  struct Parts {
    const ServedModel& model;
    EngineLoop& loop;
    RequestBook& book;
    Metrics& metrics;
    Workers& workers;
    Recorder* recorder = nullptr;  // null: nothing is recorded
  };
  Completions(const asio::any_io_executor& executor, const Parts& parts, const CompletionLimits& limits,
              std::string fingerprint);

  // Throws ApiError if it is refused; afterwards nothing is left of it.
  asio::awaitable<void> answer(Exchange& exchange, Ask ask, std::optional<ForkPoint> fork = std::nullopt);

  // What became of an ask that is no text: vectors, or scores. All of its prompts, but no more of them at a time than leave room for
  // others. Throws ApiError if it is refused, or if one of them fails.
  struct Gathered {
    std::vector<WholeAnswer> answers;
    Usage usage;
  };
  asio::awaitable<Gathered> gather(Exchange& exchange, Ask ask);

  // Streams that can be read again.
  KeptStreams& kept() { return kept_; }

  // Ends a request that runs or waits; false if there is none of that id that the viewer may see.
  bool cancel(const std::string& id, const Viewer& viewer);

 private:
  // What the engine's thread says.
  struct Delivery {
    uint32_t index = 0;  // of the answer: prompts one after the other, each with its choices
    std::optional<TokenEvent> token;
    std::optional<PromptScore> score;  // of a prompt, for all answers to it
    std::vector<float> vector;         // of a prompt that becomes one
    std::shared_ptr<const Answer> answer;
    std::string refused;
  };
  // Where it says it: to somebody who may not listen.
  struct Box : Mailbox<Delivery> {
    using Mailbox::Mailbox;
    size_t most_bytes = SIZE_MAX;
    bool joins = true;                  // tokens of one answer, if nobody asks for each of them
    std::atomic<bool> overrun = false;  // more came than may wait
    std::atomic<uint32_t> ticket = 0;   // of the request, once it has one
  };
  struct Run;
  struct Open {
    EngineLoop::Ticket ticket;
    std::string client;
  };
  class Listing;
  class Keeping;

  EngineLoop::Ticket start(const Ask& ask, const std::string& id, const std::optional<ForkPoint>& fork,
                           const std::shared_ptr<Box>& box);
  void deliver(const std::shared_ptr<Box>& box, uint32_t index, const TokenEvent& event) noexcept;
  void deliver_vector(const std::shared_ptr<Box>& box, uint32_t index, std::vector<float> vector);
  void deliver_score(const std::shared_ptr<Box>& box, uint32_t index, const PromptScore& score) noexcept;
  // What the engine's thread needs to know of one that it was given.
  struct Started;
  void submit(Started& started, const std::shared_ptr<Box>& box, Engine& engine);
  void submit_prompt(Started& started, uint32_t prompt, const std::shared_ptr<Box>& box, Engine& engine);
  std::vector<SequenceId> submit_choices(const Started& started, Request request, Engine& engine);
  void finish(const Started& started, uint32_t index, const std::shared_ptr<const Answer>& answer);
  void record(const Started& started, uint32_t index, const std::shared_ptr<const Answer>& answer) noexcept;
  void count_finished(const std::shared_ptr<const Answer>& answer, double ms) noexcept;
  void refuse_if_full(uint32_t answers) const;
  void set_deadline(Ask& ask) const;
  // Gives it to the engine; it is among those that can be cancelled as long as `listing` lives.
  void begin(Run& run, Listing& listing, const std::optional<ForkPoint>& fork);
  asio::awaitable<void> run(Exchange& exchange, Run& run, const std::optional<ForkPoint>& fork);
  asio::awaitable<void> stream(Exchange& exchange, Run& run);
  void when_gone(Exchange& exchange, const Run& run);
  Clock::time_point next_sign_of_life(const AnswerWriter& writer) const;
  asio::awaitable<void> collect(Exchange& exchange, Run& run);
  // Waits until all is there. Throws ApiError if one failed.
  asio::awaitable<std::vector<WholeAnswer>> take_all(Run& run);
  asio::awaitable<void> send_prompts(Exchange& exchange, Run& run);
  static std::string new_id(const Ask& ask);

  asio::any_io_executor executor_;
  const ServedModel& model_;
  EngineLoop& loop_;
  RequestBook& book_;
  Metrics& metrics_;
  Workers& workers_;
  Recorder* recorder_;
  const CompletionLimits limits_;
  const std::string fingerprint_;
  // Grows on the executor's thread; the engine's takes from it when an answer is complete, whoever reads it.
  std::shared_ptr<std::atomic<uint32_t>> open_answers_ = std::make_shared<std::atomic<uint32_t>>(0);
  std::map<std::string, Open> open_;  // by request id
  KeptStreams kept_;
};

}  // namespace quire
