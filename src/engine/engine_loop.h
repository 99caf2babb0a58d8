#pragma once

#include <condition_variable>
#include <deque>
#include <functional>
#include <future>
#include <map>
#include <memory>
#include <mutex>
#include <thread>

#include "engine/engine.h"

namespace quire {

// Runs an engine on a thread of its own: any thread may submit and cancel; what the engine says comes on the engine's
// thread. No request can harm another: one that is refused is told so and nothing else happens.
class EngineLoop {
 public:
  explicit EngineLoop(std::unique_ptr<Engine> engine);
  // Ends at once: whatever runs is cancelled.
  ~EngineLoop();

  using Ticket = Id<struct TicketTag>;
  // `done` is called once: with the answer (cancelled ones too), or with why the request was refused.
  using Done = std::function<void(const Answer* answer, const std::string& refused)>;
  Ticket submit(Request request, Done done);
  void cancel(Ticket ticket);

  // Runs `question(engine)` between two steps.
  template <class Question>
  auto ask(Question question) -> std::future<decltype(question(std::declval<Engine&>()))>;

  // Takes no more requests, finishes those it has until `deadline`, and cancels the rest. Returns when all is done.
  void shut_down(Clock::time_point deadline);

 private:
  using Job = std::function<void(Engine&)>;
  struct Open {
    SequenceId sequence;
    Done done;
  };

  void run();
  void post(Job job);
  void deliver();
  void cancel_now(Ticket ticket);
  void cancel_all();

  std::unique_ptr<Engine> engine_;
  std::map<uint32_t, Open> open_;  // by ticket; engine thread only

  std::mutex mutex_;
  std::condition_variable wake_;
  std::deque<Job> jobs_;
  uint32_t next_ticket_ = 1;
  bool refusing_ = false, stopping_ = false;
  Clock::time_point deadline_ = Clock::time_point::max();
  std::thread thread_;  // last: it uses all of the above
};

template <class Question>
auto EngineLoop::ask(Question question) -> std::future<decltype(question(std::declval<Engine&>()))> {
  using Reply = decltype(question(std::declval<Engine&>()));
  auto task = std::make_shared<std::packaged_task<Reply(Engine&)>>(std::move(question));
  std::future<Reply> reply = task->get_future();
  post([task](Engine& engine) { (*task)(engine); });
  return reply;
}

}  // namespace quire
