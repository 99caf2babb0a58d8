#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "engine/sequence.h"
#include "engine/tier_loads.h"
#include "kv/kv_cache.h"

namespace quire {

struct SchedulerOptions {
  uint32_t max_sequences = 1;  // that run at once
  uint32_t prefill_chunk = 512;
};

// The immutable list of token runs of one step.
struct StepPlan {
  struct Run {
    Sequence* sequence;
    SequenceId id;    // it may have gone when the step is done
    uint32_t count;   // tokens from the first on that has no row
    uint32_t drafts;  // guessed tokens after them
    bool is_prompt;   // it had more than one token to do
    bool samples;     // its last known token is in it: new ones are drawn, one for it and one for each draft
    bool scored;      // each of its tokens says how likely the next one was
  };
  std::vector<Run> runs;
  // Tokens of a pass that a sequence's scorer wants to see, from sequence->pass_done on.
  struct Scoring {
    Sequence* sequence;
    uint32_t count;
  };
  std::vector<Scoring> scorings;
  bool empty() const { return runs.empty() && scorings.empty(); }
  uint32_t tokens = 0;          // drafts included
  uint32_t prefill_tokens = 0;  // of runs that had more than one token to do
  // Something could not be planned while another step is on its way.
  bool wants_to_wait = false;

  uint32_t draft_tokens() const {
    uint32_t count = 0;
    for (const Run& run : runs) count += run.drafts;
    return count;
  }
};

// The only one who decides who runs, who waits and who is preempted. Each step serves the streams first (those with one
// token to do), then fills a budget of tokens with prompts: by priority, then the client that was served least, then
// arrival. When pages run out the youngest of the lowest priority gives up its own, to compute them again later. Engine
// thread only.
class Scheduler {
 public:
  // Sequences whose prefix is in the host's memory, on the disk or in a store wait for it: `loads`.
  Scheduler(const SchedulerOptions& options, KvCache& kv, TierLoads& loads)
      : options_(options), kv_(kv), loads_(loads) {}

  void add(std::unique_ptr<Sequence> sequence);
  // At most `prefill_budget` tokens of prompts, which take `prompt_token_ms` each (0: not known); the room for all of its tokens is reserved. Sequences that can never run
  // any more get the reason no_room and are left out: see take_hopeless.
  // While another step is on its way nobody who takes part in it can be preempted.
  enum class Before : uint8_t { all_done, one_on_its_way };
  StepPlan plan(uint32_t prefill_budget, double prompt_token_ms = 0, Before before = Before::all_done);
  // Waiting sequences for which there is no room although nobody runs: pins have taken it.
  std::vector<std::unique_ptr<Sequence>> take_hopeless();

  // After something failed halfway: those that ran are gone, without a word, and those that wait hold nothing and begin
  // anew. Allocates nothing.
  void drop_running();
  // The same, and those that wait are gone too.
  void drop_all();
  // Takes a sequence out, wherever it is; null if it is not here. Its pages are still in its table.
  std::unique_ptr<Sequence> remove(SequenceId id);
  Sequence* find(SequenceId id) const;
  bool idle() const { return running_.empty() && waiting_.empty(); }
  const std::vector<std::unique_ptr<Sequence>>& running() const { return running_; }
  const std::vector<std::unique_ptr<Sequence>>& waiting() const { return waiting_; }
  uint64_t preemptions() const { return preemptions_; }
  // Tokens served, weighted, by client: what fair shares are measured by.
  const std::map<std::string, double>& served() const { return served_; }

  void check_invariants() const;

 private:
  void plan_streams(StepPlan& plan);
  void plan_prompts(StepPlan& plan, uint32_t& budget);
  void admit_waiting(StepPlan& plan, uint32_t& budget);
  bool make_room_for(Sequence& sequence, StepPlan& plan);
  void add_run(Sequence& sequence, uint32_t count, StepPlan& plan);
  // Plans the prompt, or the pass that is due before it.
  uint32_t next_count(Sequence& sequence, uint32_t budget) const;
  uint32_t rows_with(Sequence& sequence, uint32_t count) const;
  void add_prompt(Sequence& sequence, uint32_t count, StepPlan& plan);
  // Room for its tokens up to `tokens`, taken from others if need be. False if it had to give up its own.
  bool reserve_or_preempt(Sequence& sequence, uint32_t tokens, StepPlan& plan);
  // Prunes its prompt if that is due, with room taken from others if need be. False if it had to give up its own.
  bool prune_or_preempt(Sequence& sequence, StepPlan& plan);
  // The same where its budget is full.
  bool let_go_or_preempt(Sequence& sequence, StepPlan& plan);
  // Whether it must, as what it needs cannot be done while a step is on its way.
  bool must_wait(StepPlan& plan) const;
  // Whether nobody but it could make room, while pages that are on their way have taken some: they will be cached.
  bool waits_for_arrivals(const Sequence& sequence, const Sequence* victim) const {
    return victim == &sequence && kv_.pages_arriving() > 0;
  }
  // One that found no room with nobody else running will never find any. False.
  bool give_up_if_alone(Sequence& sequence);
  void preempt(Sequence& sequence, StepPlan& plan);
  // The best of those that wait, but for `passed_over`.
  Sequence* next_waiting(std::span<Sequence* const> passed_over = {}) const;
  // Somebody is about to compute pages that this sequence could share: a step later they are there.
  bool others_compute_its_prefix(const Sequence& sequence) const;
  bool waits_for_tiers(Sequence& sequence);
  Sequence* first_victim() const;
  void start(Sequence& sequence);
  // Whether what others have left of its document is there.
  bool finds_document(const Sequence& sequence) const {
    const auto document = sequence.document();
    return document && kv_.lookup_document(*document);
  }
  // Begins with it.
  void start_after_document(Sequence& sequence);
  bool fits(const Sequence& sequence, uint32_t tokens, uint32_t headroom) const;
  void charge(const Sequence& sequence, double tokens) { served_[sequence.request.client] += tokens; }
  int64_t rank(const Sequence& sequence) const;  // priority, raised by waiting

  SchedulerOptions options_;
  KvCache& kv_;
  TierLoads& loads_;
  double prompt_token_ms_ = 0;
  uint32_t score_room_ = 0;  // rows of logits that the step may still compute of prompts that are scored
  Before before_ = Before::all_done;
  std::vector<std::unique_ptr<Sequence>> running_, waiting_;
  std::map<std::string, double> served_;
  uint64_t step_ = 0;
  uint64_t preemptions_ = 0;
};

}  // namespace quire
