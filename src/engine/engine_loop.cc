#include "engine/engine_loop.h"

#include <utility>
#include <vector>

#include "base/error.h"

namespace quire {

EngineLoop::EngineLoop(std::unique_ptr<Engine> engine)
    : engine_(std::move(engine)), thread_([this] { run(); }) {}

EngineLoop::~EngineLoop() {
  shut_down(Clock::now());
}

void EngineLoop::post(Job job) {
  {
    const std::lock_guard lock(mutex_);
    jobs_.push_back(std::move(job));
  }
  wake_.notify_one();
}

EngineLoop::Ticket EngineLoop::submit(Request request, Done done) {
  Ticket ticket;
  {
    const std::lock_guard lock(mutex_);
    ticket = Ticket{next_ticket_++};
    if (!refusing_) {
      jobs_.push_back([this, ticket, request = std::move(request), done](Engine& engine) mutable {
        try {
          const SequenceId sequence = engine.submit(std::move(request));
          open_.emplace(ticket.value, Open{sequence, std::move(done)});
        } catch (const Error& error) {
          done(nullptr, error.what());
        }
      });
      done = nullptr;
    }
  }
  if (done) {
    done(nullptr, "the engine is shutting down");
  } else {
    wake_.notify_one();
  }
  return ticket;
}

void EngineLoop::cancel(Ticket ticket) {
  post([this, ticket](Engine&) { cancel_now(ticket); });
}

void EngineLoop::cancel_now(Ticket ticket) {
  const auto found = open_.find(ticket.value);
  if (found == open_.end()) return;
  const Open open = std::move(found->second);
  open_.erase(found);
  engine_->cancel(open.sequence);
  Answer cancelled;
  cancelled.finish_reason = FinishReason::cancelled;
  open.done(&cancelled, "");
}

void EngineLoop::cancel_all() {
  while (!open_.empty()) cancel_now(Ticket{open_.begin()->first});
}

void EngineLoop::deliver() {
  for (auto& [sequence, answer] : engine_->take_answers()) {
    for (auto it = open_.begin(); it != open_.end(); ++it) {
      if (it->second.sequence != sequence) continue;
      const Open open = std::move(it->second);
      open_.erase(it);
      open.done(&answer, "");
      break;
    }
  }
}

void EngineLoop::run() {
  while (true) {
    std::deque<Job> jobs;
    {
      std::unique_lock lock(mutex_);
      wake_.wait(lock, [&] { return !jobs_.empty() || stopping_ || !engine_->scheduler().idle(); });
      jobs.swap(jobs_);
    }
    for (Job& job : jobs) job(*engine_);
    {
      const std::lock_guard lock(mutex_);
      if (stopping_ && jobs_.empty() && (open_.empty() || Clock::now() >= deadline_)) break;
    }
    engine_->step();
    deliver();
  }
  cancel_all();
}

void EngineLoop::shut_down(Clock::time_point deadline) {
  {
    const std::lock_guard lock(mutex_);
    refusing_ = stopping_ = true;
    deadline_ = std::min(deadline_, deadline);
  }
  wake_.notify_one();
  if (thread_.joinable()) thread_.join();
}

}  // namespace quire
