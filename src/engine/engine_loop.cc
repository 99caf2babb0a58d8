#include "engine/engine_loop.h"

#include <algorithm>
#include <chrono>
#include <new>
#include <utility>
#include <vector>

#include "backend/device_lost.h"
#include "base/error.h"
#include "base/memory_reserve.h"

namespace quire {
namespace {

constexpr int kAttempts = 100;
constexpr std::chrono::milliseconds kPause{10};

const char* words_for(const std::exception& error) {
  return dynamic_cast<const std::bad_alloc*>(&error) != nullptr ? "there was not enough memory"
                                                                : error.what();
}

}  // namespace

EngineLoop::EngineLoop(std::unique_ptr<Engine> engine, std::function<void(const Engine&)> after_step)
    : engine_(std::move(engine)), after_step_(std::move(after_step)), thread_([this] { run(); }) {}

EngineLoop::~EngineLoop() {
  shut_down(Clock::now());
}

bool EngineLoop::post(Job job) {
  {
    const std::lock_guard lock(mutex_);
    if (ended_) return false;
    jobs_.push_back(std::move(job));
  }
  wake_.notify_one();
  return true;
}

EngineLoop::Ticket EngineLoop::submit(Request request, Done done) {
  auto shared = std::make_shared<Request>(std::move(request));
  return start([shared](Engine& engine) { return std::vector{engine.submit(std::move(*shared))}; },
               [done = std::move(done)](uint32_t, const Answer* answer, const std::string& refused) {
                 done(answer, refused);
               });
}

EngineLoop::Ticket EngineLoop::start(Begin begin, EachDone done) {
  Ticket ticket;
  bool refused = false;
  {
    const std::lock_guard lock(mutex_);
    ticket = Ticket{next_ticket_++};
    refused = refusing_;
    if (!refused) {
      jobs_.push_back(
          [this, ticket, begin = std::move(begin), done](Engine&) { begin_now(ticket, begin, done); });
    }
  }
  if (refused) {
    done(0, nullptr, "the engine is shutting down");
  } else {
    wake_.notify_one();
  }
  return ticket;
}

template <class Words>
void EngineLoop::tell(Words&& words) {
  for (int attempt = 0; attempt < kAttempts; ++attempt) {
    try {
      words();
      return;
    } catch (const std::bad_alloc&) {
      if (attempt > 0) std::this_thread::sleep_for(kPause);
    } catch (const std::exception&) {
      return;  // it is theirs, and they have heard
    }
  }
}

void EngineLoop::begin_now(Ticket ticket, const Begin& begin, const EachDone& done) {
  std::vector<SequenceId> sequences;
  const auto undo = [&] {
    open_.erase(ticket.value);
    for (SequenceId id : sequences) {
      place_.erase(id);
      tell([&] { engine_->cancel(id); });
    }
  };
  try {
    auto shared = std::make_shared<EachDone>(done);
    sequences = begin(*engine_);
    for (uint32_t choice = 0; choice < sequences.size(); ++choice)
      place_.emplace(sequences[choice], Place{ticket.value, choice});
    open_.emplace(ticket.value, Open{sequences, std::move(shared)});
  } catch (const DeviceLost& lost) {
    undo();
    Answer failed;
    failed.finish_reason = FinishReason::failed;
    failed.problem = lost.what();
    tell([&] { done(0, &failed, failed.problem); });
  } catch (const Error& error) {
    undo();
    tell([&] { done(0, nullptr, error.what()); });
  } catch (const std::exception& error) {
    undo();
    Answer failed;
    failed.finish_reason = FinishReason::failed;
    tell([&] { done(0, &failed, words_for(error)); });
  }
}

void EngineLoop::cancel(Ticket ticket) {
  post([this, ticket](Engine&) { cancel_now(ticket); });
}

void EngineLoop::cancel_now(Ticket ticket) {
  const auto found = open_.find(ticket.value);
  if (found == open_.end()) return;
  const Open open = std::move(found->second);
  open_.erase(found);
  Answer cancelled;
  cancelled.finish_reason = FinishReason::cancelled;
  for (uint32_t choice = 0; choice < open.sequences.size(); ++choice) {
    if (place_.erase(open.sequences[choice]) == 0) continue;  // it had finished
    try {
      engine_->cancel(open.sequences[choice]);
    } catch (const std::exception& error) {
      end_lost(words_for(error));
    }
    tell([&] { (*open.done)(choice, &cancelled, ""); });
  }
}

void EngineLoop::cancel_all() {
  while (!open_.empty()) cancel_now(Ticket{open_.begin()->first});
}

void EngineLoop::deliver() {
  for (auto& [sequence, answer] : engine_->take_answers()) {
    const auto found = place_.find(sequence);
    if (found == place_.end()) continue;
    const Place place = found->second;
    place_.erase(found);
    const auto open = open_.find(place.ticket);
    const std::shared_ptr<EachDone> done = open->second.done;
    const auto& all = open->second.sequences;
    if (std::ranges::none_of(all, [&](SequenceId id) { return place_.contains(id); })) open_.erase(open);
    tell([&, said = &answer] { (*done)(place.choice, said, ""); });
  }
}

void EngineLoop::end_lost(const char* problem) {
  Answer failed;
  failed.finish_reason = FinishReason::failed;
  for (auto at = place_.begin(); at != place_.end();) {
    if (engine_->scheduler().find(at->first) != nullptr) {
      ++at;
      continue;
    }
    const Place place = at->second;
    at = place_.erase(at);
    const auto open = open_.find(place.ticket);
    const std::shared_ptr<EachDone> done = open->second.done;
    const auto& all = open->second.sequences;
    if (std::ranges::none_of(all, [&](SequenceId id) { return place_.contains(id); })) open_.erase(open);
    tell([&] {
      failed.problem = problem;
      (*done)(place.choice, &failed, "");
    });
  }
}

void EngineLoop::step() {
  try {
    engine_->step();
  } catch (const std::exception& error) {
    deliver();
    end_lost(words_for(error));
  }
  if (after_step_) tell([&] { after_step_(*engine_); });
  deliver();
}

void EngineLoop::run() {
  while (true) {
    std::vector<Job> jobs;  // which takes no memory until it is full
    {
      std::unique_lock lock(mutex_);
      wake_.wait(lock, [&] { return !jobs_.empty() || stopping_ || !engine_->idle(); });
      jobs.swap(jobs_);
    }
    keep_memory_reserve();
    for (Job& job : jobs) {
      try {
        job(*engine_);
      } catch (const std::exception& error) {
        end_lost(words_for(error));  // its owner has been told, or has gone; others may have ended with it
      }
    }
    {
      const std::lock_guard lock(mutex_);
      ended_ = stopping_ && jobs_.empty() && (open_.empty() || Clock::now() >= deadline_);
      if (ended_) break;
    }
    step();
  }
  cancel_all();
}

void EngineLoop::hasten(Clock::time_point deadline) {
  {
    const std::lock_guard lock(mutex_);
    deadline_ = std::min(deadline_, deadline);
  }
  wake_.notify_one();
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
