// Who runs, who waits and who gives up his pages: the scheduler with a cache and nobody who computes.
#include "engine/scheduler.h"

#include <map>

#include <gtest/gtest.h>

namespace quire {
namespace {

constexpr uint32_t kPageRows = 4;

class Scheduling : public testing::Test {
 protected:
  void make(uint32_t pages, uint32_t max_sequences = 8) {
    const KvLayerShape shape{.kv_heads = 1,
                             .key_dim = 2,
                             .value_dim = 2,
                             .window = 0,
                             .key_format = KvFormat::f32,
                             .value_format = KvFormat::f32};
    scheduler_.reset();
    kv_ = std::make_unique<KvCache>(make_kv_layout(std::vector{shape}, kPageRows), std::vector{pages});
    scheduler_ = std::make_unique<Scheduler>(
        SchedulerOptions{.max_sequences = max_sequences, .prefill_chunk = 64}, *kv_, loads_);
  }
  ~Scheduling() override {
    if (!scheduler_) return;
    scheduler_->check_invariants();
    for (uint32_t id = 1; id < next_; ++id) end(SequenceId{id});
    EXPECT_TRUE(scheduler_->idle());
    kv_->check_invariants();
    EXPECT_EQ(kv_->stats().held_pages, 0u);
  }

  struct Ask {
    uint32_t tokens = 8;
    int32_t priority = 0;
    std::string client = "somebody";
    bool scored = false;
  };
  // Its tokens are nobody else's.
  SequenceId add(const Ask& ask) {
    const SequenceId id{next_++};
    Request request;
    for (uint32_t i = 0; i < ask.tokens; ++i) request.prompt.push_back(1000 * id.value + i);
    request.priority = ask.priority;
    request.client = ask.client;
    if (ask.scored) request.on_prompt_score = [](const PromptScore&) {};
    scheduler_->add(
        std::make_unique<Sequence>(id, request, kv_->make_table(id), nullptr, Clock::time_point()));
    return id;
  }
  // As the engine does once the tokens are computed.
  void settle(const StepPlan& plan) {
    for (const StepPlan::Run& run : plan.runs) {
      Sequence& sequence = *scheduler_->find(run.id);
      sequence.computed += run.count;
      if (run.samples) sequence.append(7);
      kv_->publish(sequence.table, sequence.tokens, sequence.computed);
    }
    (void)kv_->take_moves();
    scheduler_->check_invariants();
    kv_->check_invariants();
  }
  StepPlan step(uint32_t budget = 64) {
    StepPlan plan = scheduler_->plan(budget);
    settle(plan);
    return plan;
  }
  void end(SequenceId id) {
    const std::unique_ptr<Sequence> gone = scheduler_->remove(id);
    if (gone) kv_->release(gone->table, gone->tokens, gone->computed, KvCache::Reason::finished);
  }
  static std::map<uint32_t, uint32_t> counts(const StepPlan& plan) {
    std::map<uint32_t, uint32_t> counts;
    for (const StepPlan::Run& run : plan.runs) counts[run.id.value] = run.count;
    return counts;
  }
  using Counts = std::map<uint32_t, uint32_t>;

  std::unique_ptr<KvCache> kv_;
  TierLoads loads_;
  std::unique_ptr<Scheduler> scheduler_;
  uint32_t next_ = 1;
};

TEST_F(Scheduling, APromptIsCutByTheBudgetAndDrawsWithItsLastToken) {
  make(16);
  add({.tokens = 10});
  StepPlan plan = step(6);
  EXPECT_EQ(counts(plan), (Counts{{1, 6}}));
  EXPECT_FALSE(plan.runs[0].samples);
  plan = step(6);
  EXPECT_EQ(counts(plan), (Counts{{1, 4}}));
  EXPECT_TRUE(plan.runs[0].samples);
  plan = step(6);
  EXPECT_EQ(counts(plan), (Counts{{1, 1}}));
  EXPECT_FALSE(plan.runs[0].is_prompt);
  EXPECT_EQ(plan.prefill_tokens, 0u);
}

TEST_F(Scheduling, StreamsAreServedEvenWhereNothingIsLeftForPrompts) {
  make(16);
  add({.tokens = 4});
  step();
  add({.tokens = 8});
  EXPECT_EQ(counts(step(0)), (Counts{{1, 1}}));
  EXPECT_EQ(counts(step(3)), (Counts{{1, 1}, {2, 3}}));
}

TEST_F(Scheduling, TheHigherPriorityGoesFirstThenTheClientServedLeastThenArrival) {
  make(64, 1);  // one at a time
  const SequenceId first = add({.client = "ann"});
  step();
  add({.client = "ann"});                 // 2
  add({.client = "bob"});                 // 3
  add({.priority = 1, .client = "ann"});  // 4
  EXPECT_EQ(counts(step()), (Counts{{4, 8}})) << "it takes the only place";
  EXPECT_EQ(scheduler_->preemptions(), 1u);
  end(SequenceId{4});
  EXPECT_EQ(counts(step()), (Counts{{3, 8}})) << "bob was served least";
  end(SequenceId{3});
  end(first);
  EXPECT_EQ(counts(step()), (Counts{{2, 8}}));
}

TEST_F(Scheduling, WhenPagesRunOutTheYoungestGivesUpItsOwn) {
  make(7);
  add({.tokens = 8});
  add({.tokens = 8});
  EXPECT_EQ(counts(step()), (Counts{{1, 8}, {2, 8}}));  // two pages each
  for (int i = 0; i < 8 && scheduler_->preemptions() == 0; ++i) step();
  EXPECT_EQ(scheduler_->preemptions(), 1u);
  EXPECT_TRUE(scheduler_->find(SequenceId{1})->running);
  const Sequence* second = scheduler_->find(SequenceId{2});
  EXPECT_FALSE(second->running);
  EXPECT_EQ(second->computed, 0u);
  EXPECT_EQ(second->answer.account.preemptions, 1u);
  EXPECT_GT(second->answer_tokens(), 0u) << "what it said stays said";
}

TEST_F(Scheduling, AHigherPriorityTakesTheRoomOfALowerOneButNotOfItsLike) {
  make(4);
  add({.tokens = 12});
  step();
  add({.tokens = 12});
  step();
  EXPECT_FALSE(scheduler_->find(SequenceId{2})->running);
  EXPECT_EQ(scheduler_->preemptions(), 0u);
  add({.tokens = 12, .priority = 1});
  step();
  EXPECT_TRUE(scheduler_->find(SequenceId{3})->running);
  EXPECT_FALSE(scheduler_->find(SequenceId{1})->running);
  EXPECT_EQ(scheduler_->preemptions(), 1u);
}

TEST_F(Scheduling, NobodyIsPreemptedWhileAStepIsOnItsWay) {
  make(4);
  add({.tokens = 12});
  step();
  add({.tokens = 12, .priority = 1});
  const StepPlan plan = scheduler_->plan(64, 0, Scheduler::Before::one_on_its_way);
  EXPECT_TRUE(plan.wants_to_wait);
  EXPECT_EQ(scheduler_->preemptions(), 0u);
  settle(plan);
}

TEST_F(Scheduling, NoMoreRunThanMay) {
  make(64, 2);
  for (int i = 0; i < 4; ++i) add({.tokens = 4});
  EXPECT_EQ(step().runs.size(), 2u);
  EXPECT_EQ(scheduler_->running().size(), 2u);
  EXPECT_EQ(scheduler_->waiting().size(), 2u);
  end(SequenceId{1});
  step();
  EXPECT_TRUE(scheduler_->find(SequenceId{3})->running);
}

TEST_F(Scheduling, OneForWhomThereIsNoRoomAlthoughNobodyRunsIsHopeless) {
  make(2);
  add({.tokens = 12});
  EXPECT_TRUE(scheduler_->plan(64).empty());
  const auto hopeless = scheduler_->take_hopeless();
  ASSERT_EQ(hopeless.size(), 1u);
  EXPECT_EQ(hopeless[0]->id, SequenceId{1});
  EXPECT_TRUE(scheduler_->idle());
}

TEST_F(Scheduling, OneThatBeginsAlikeWaitsUntilThePagesAreThere) {
  make(64);
  Request request;
  for (uint32_t i = 0; i < 16; ++i) request.prompt.push_back(i);
  for (int i = 0; i < 2; ++i) {
    const SequenceId id{next_++};
    scheduler_->add(
        std::make_unique<Sequence>(id, request, kv_->make_table(id), nullptr, Clock::time_point()));
  }
  EXPECT_EQ(counts(step()), (Counts{{1, 16}})) << "the second waits for what the first computes";
  const StepPlan plan = step();
  EXPECT_EQ(counts(plan), (Counts{{1, 1}, {2, 1}})) << "all is found but for the last token";
  EXPECT_EQ(scheduler_->find(SequenceId{2})->answer.account.cached_tokens, 15u);
}

TEST_F(Scheduling, AfterAFailureThoseThatWaitBeginAnew) {
  make(16);
  add({.tokens = 8});
  step();
  scheduler_->drop_running();
  kv_->forget_everything();
  add({.tokens = 8});
  EXPECT_EQ(scheduler_->find(SequenceId{1}), nullptr);
  EXPECT_EQ(counts(step()), (Counts{{2, 8}}));
}

TEST_F(Scheduling, PromptsThatAreScoredShareFewRowsOfAStep) {
  make(100);
  const SequenceId first = add({.tokens = 100, .scored = true}), second = add({.tokens = 20, .scored = true});
  const SequenceId plain = add({.tokens = 30});
  // What predicts no token of the prompt is left for a run of its own, which draws.
  const StepPlan one = step(1000);
  EXPECT_EQ(counts(one), (Counts{{first.value, PromptScore::kMostRows}, {plain.value, 30}}));
  EXPECT_TRUE(one.runs.front().scored && !one.runs.front().samples);
  EXPECT_EQ(counts(step(1000)), (Counts{{first.value, 35}, {second.value, 19}, {plain.value, 1}}));
  const StepPlan last = step(1000);
  EXPECT_EQ(counts(last), (Counts{{first.value, 1}, {second.value, 1}, {plain.value, 1}}));
  for (const StepPlan::Run& run : last.runs) EXPECT_TRUE(run.samples && !run.scored);
}

TEST_F(Scheduling, APromptThatIsScoredIsComputedThoughItIsCached) {
  make(100);
  add({.tokens = 32});
  step(1000);
  const SequenceId id{next_++};
  Request request;
  for (uint32_t i = 0; i < 32; ++i) request.prompt.push_back(1000 + i);
  request.on_prompt_score = [](const PromptScore&) {};
  scheduler_->add(std::make_unique<Sequence>(id, request, kv_->make_table(id), nullptr, Clock::time_point()));
  EXPECT_EQ(counts(step(1000)).at(id.value), 31u);
}

}  // namespace
}  // namespace quire
