#pragma once

#include <cstdint>
#include <deque>
#include <memory>
#include <vector>

#include "engine/sequence.h"

namespace quire {

struct SchedulerOptions {
  uint32_t max_sequences = 1;
  uint32_t step_tokens = 512;  // of all runs of a step; what is left of it goes to prefill
};

// The immutable list of token runs of one step.
struct StepPlan {
  struct Run {
    Sequence* sequence;
    uint32_t count;  // tokens from sequence->computed on
    bool samples;    // its last token is the last that is known: a new one is drawn
  };
  std::vector<Run> runs;
  uint32_t tokens = 0;
};

// The only one who decides who runs and who waits. First come, first served; backlogs of one come first, so
// that no stream stalls behind a long prompt. Engine thread only.
class Scheduler {
 public:
  explicit Scheduler(SchedulerOptions options) : options_(options) {}

  void add(std::unique_ptr<Sequence> sequence) { waiting_.push_back(std::move(sequence)); }
  StepPlan plan();

  // Takes a sequence out, wherever it is; null if it is not here.
  std::unique_ptr<Sequence> remove(SequenceId id);
  bool idle() const { return running_.empty() && waiting_.empty(); }
  const std::vector<std::unique_ptr<Sequence>>& running() const { return running_; }

 private:
  SchedulerOptions options_;
  std::vector<std::unique_ptr<Sequence>> running_;  // by arrival
  std::deque<std::unique_ptr<Sequence>> waiting_;
};

}  // namespace quire
