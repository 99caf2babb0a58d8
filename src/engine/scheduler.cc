#include "engine/scheduler.h"

#include <algorithm>
#include <utility>

namespace quire {

StepPlan Scheduler::plan() {
  while (!waiting_.empty() && running_.size() < options_.max_sequences) {
    running_.push_back(std::move(waiting_.front()));
    waiting_.pop_front();
  }
  StepPlan plan;
  const auto admit = [&](Sequence& sequence) {
    const uint32_t count = std::min(sequence.backlog(), options_.step_tokens - plan.tokens);
    if (count == 0) return;
    plan.runs.push_back({&sequence, count, count == sequence.backlog()});
    plan.tokens += count;
  };
  for (const auto& sequence : running_) {
    if (sequence->backlog() == 1) admit(*sequence);
  }
  for (const auto& sequence : running_) {
    if (sequence->backlog() > 1) admit(*sequence);
  }
  return plan;
}

std::unique_ptr<Sequence> Scheduler::remove(SequenceId id) {
  const auto take = [&](auto& list) -> std::unique_ptr<Sequence> {
    const auto found = std::find_if(list.begin(), list.end(), [&](const auto& s) { return s->id == id; });
    if (found == list.end()) return nullptr;
    std::unique_ptr<Sequence> sequence = std::move(*found);
    list.erase(found);
    return sequence;
  };
  if (auto sequence = take(running_)) return sequence;
  return take(waiting_);
}

}  // namespace quire
