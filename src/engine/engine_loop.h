#pragma once

#include <condition_variable>
#include <functional>
#include <future>
#include <map>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

#include "engine/engine.h"

namespace quire {

// Runs an engine on a thread of its own: any thread may submit and cancel; what the engine says comes on the engine's
// thread. No request can harm another: one that is refused is told so and nothing else happens; a step that fails ends
// those it served, who are told so, and the loop goes on.
class EngineLoop {
 public:
  // `after_step` is called after each step and each round of jobs, on the engine's thread.
  explicit EngineLoop(std::unique_ptr<Engine> engine,
                      std::function<void(const Engine&)> after_step = nullptr);
  // Ends at once: whatever runs is cancelled.
  ~EngineLoop();

  using Ticket = Id<struct TicketTag>;
  // Called once: with the answer (cancelled and failed ones too), or with why the request was refused; with both if it could
  // not be begun and is not to blame. If it throws for want of memory it is called again.
  using Done = std::function<void(const Answer* answer, const std::string& refused)>;
  Ticket submit(Request request, Done done);

  // Begins something with several answers: `begin` submits them, or throws Error if it cannot be. `done` is called once
  // for each, with its place among them, or once with why it was refused.
  using Begin = std::function<std::vector<SequenceId>(Engine&)>;
  using EachDone = std::function<void(uint32_t choice, const Answer* answer, const std::string& refused)>;
  Ticket start(Begin begin, EachDone done);

  // Whatever the ticket stands for ends at the next step and frees all it held.
  void cancel(Ticket ticket);

  // Runs `job(engine)` between two steps. False: the end has come, and it never will. What it throws is lost: whoever waits
  // for it must be told by the job itself.
  using Job = std::function<void(Engine&)>;
  bool post(Job job);
  template <class Question>
  auto ask(Question question) -> std::future<decltype(question(std::declval<Engine&>()))>;

  // Takes no more requests, finishes those it has until `deadline`, and cancels the rest. Returns when all is done.
  void shut_down(Clock::time_point deadline);
  // Moves the deadline of a shutdown that another thread waits for.
  void hasten(Clock::time_point deadline);

 private:
  struct Open {
    std::vector<SequenceId> sequences;
    std::shared_ptr<EachDone> done;
  };
  struct Place {
    uint32_t ticket;
    uint32_t choice;
  };

  void run();
  void begin_now(Ticket ticket, const Begin& begin, const EachDone& done);
  void step();
  void deliver();
  // Tells those who have no sequence any more that it failed.
  void end_lost(const char* problem);
  // Somebody waits for these words: they are said again when memory was short.
  template <class Words>
  void tell(Words&& words);
  void cancel_now(Ticket ticket);
  void cancel_all();

  std::unique_ptr<Engine> engine_;
  std::function<void(const Engine&)> after_step_;
  std::map<uint32_t, Open> open_;      // by ticket; engine thread only, as the next
  std::map<SequenceId, Place> place_;  // of each sequence that has not finished

  std::mutex mutex_;
  std::condition_variable wake_;
  std::vector<Job> jobs_;
  uint32_t next_ticket_ = 1;
  bool refusing_ = false, stopping_ = false, ended_ = false;
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
