#pragma once

#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "base/id.h"
#include "kv/pages/page_memory.h"
#include "model/decoder.h"
#include "ranks/ranks.h"
#include "runner/step_input.h"

namespace quire {

using StepHandle = Id<struct StepTag>;

struct StepOutput {
  std::vector<SampleResult> draws;  // as StepInput asked for them
  std::vector<float> logits;        // [logit_rows, vocab], if they were asked for
  std::vector<float> hidden;        // [tokens, dim], if they were asked for
  std::vector<float> values;        // StepInput's, after its expectations and taps
  uint32_t vocab = 0;

  std::span<const float> logits_of(size_t row) const { return std::span(logits).subspan(row * vocab, vocab); }
};

// What a runner computes with. All of it must outlive the runner.
struct RunnerModel {
  const ModelSpec* spec = nullptr;
  const Weights* weights = nullptr;
  Backend* backend = nullptr;
  Ranks* ranks = nullptr;  // with whom it is computed; null: alone
};

// The only one who computes: it has the decoder and the bytes of the pages, and does what StepInputs say, one after the other.
// A step may be launched while the one before it still runs. One thread.
//
// Where a model is divided, rank 0's runner tells those of the others what it is told (runner/follower.h).
class Runner {
 public:
  Runner(const RunnerModel& model, const KvLayout& layout, std::span<const uint32_t> pages_per_group);
  ~Runner();

  // The largest step to come, so that none has to wait for memory.
  void reserve(size_t tokens, size_t logit_rows) { decoder_.reserve(tokens, logit_rows); }

  // Makes the input's moves, then computes. What it throws, it throws after the moves were made, or made none of them.
  StepHandle launch(StepInput input);
  // Waits for a step. REQUIRES: it is the oldest that was launched and not collected.
  StepOutput collect(StepHandle step);

  // Moves bytes after all that was launched; they are moved when it returns.
  void make(const KvMoves& moves);
  // Begins to, and goes on beside it with the second.
  void start(KvMoves moves, KvMoves aside);
  // Moves of steps that are made since this was last asked.
  KvMoves take_made();
  // The same of moves aside, some at a time, in their order; nothing: no more are made yet.
  struct MadeAside {
    KvMoves moves;
    size_t bytes = 0;
    double seconds = 0;  // 0: not known
  };
  std::optional<MadeAside> take_made_aside();
  // Waits for the oldest moves aside, and for all of them.
  void wait_for_aside();
  void wait_for_asides();
  // Waits for all moves and steps.
  void settle();
  // After something failed: waits for all that was launched, and drops what it gave. Its moves are made.
  void drain();
  // The same, and nobody will ask for the moves either. Never throws DeviceLost: who leaves need not know.
  void abandon();

  const KvLayout& layout() const { return memory_.layout(); }
  size_t workspace_bytes() const { return decoder_.workspace_bytes(); }

 private:
  struct Flight;
  // Throws DeviceLost once; after that nothing is on its way any more, and there is nothing to wait for.
  void wait(Backend::Mark mark);
  template <class Work>
  void unless_lost(Work&& work);
  void start_aside(KvMoves moves);
  // Rank 0: the others do it too.
  bool leads() const { return model_.ranks != nullptr && model_.ranks->leads(); }
  void tell_moves(const KvMoves& moves);
  void end_ranks();  // within a handler
  void compute(Flight& flight);
  void draw(Flight& flight, const Rows& logits);

  RunnerModel model_;
  PageMemory memory_;
  Decoder decoder_;
  std::deque<std::unique_ptr<Flight>> flights_;                  // launched and not collected
  std::shared_ptr<const std::vector<SampleResult>> last_draws_;  // of the step launched last
  struct Made {
    Backend::Mark mark;
    KvMoves moves;
  };
  std::deque<Made> made_;
  struct Aside {
    Backend::AsideMark mark = 0;
    MadeAside made;
  };
  std::deque<Aside> asides_;   // the oldest first
  Backend::Mark reached_ = 0;  // all up to there is known to have happened
  bool is_lost_ = false;       // the device is
  uint32_t next_ = 1;
};

}  // namespace quire
