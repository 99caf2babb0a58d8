// Promise 2 where sequences keep to a budget of rows: what a request gets depends on its own tokens and its budget, and on nobody else.
#include "engine_sharing_fixture.h"

namespace quire {
namespace {

class EngineBudget : public EngineSharing {
 protected:
  // Two of three have a budget, and some of those go on beyond the context.
  EngineBudget() {
    requests_.resize(GetParam().formats.only() == KvFormat::f16 ? 120 : 60);
    for (size_t i = 0; i < requests_.size(); ++i) {
      Request& request = requests_[i];
      if (i % 3 == 0) continue;
      request.budget =
          BudgetOptions{.rows = uint32_t(16 + i % 5 * 6), .pinned = uint32_t(i % 4), .window = 4};
      if (i % 7 == 2) request.budget->policy = PruningPolicy::streaming;
      if (i % 2 == 0) request.max_tokens += 40;
      if (i % 5 == 1) {
        for (uint32_t p = 0; p < 80; ++p)
          request.prompt.push_back((uint32_t(i) * 13 + p * 5) % model_.spec.vocab);
      }
    }
  }

  // And how often positions were counted anew.
  std::vector<Result> by_themselves() {
    std::vector<Result> results;
    for (const Request& request : requests_) {
      Engine engine = make_engine({.sequences = 1, .chunk = kContext, .sharing = false});
      const Answer answer = engine.run(request);
      results.emplace_back(answer.tokens, answer.logprobs);
      if (!request.budget) continue;
      forgotten_ += answer.account.forgotten_tokens;
      anew_ += answer.account.counted_anew;
      EXPECT_LE(answer.kv_pages, most_pages(*request.budget, engine)) << request.budget->rows;
    }
    return results;
  }

  uint32_t most_pages(const BudgetOptions& budget, const Engine& engine) const {
    const KvLayout& layout = engine.kv().layout();
    const BudgetRun run(budget, model_.spec, layout, kContext, true);
    uint32_t all = 0;
    for (const uint32_t pages : pages_for(layout, run.size_of(10000), kContext, 1)) all += pages;
    return all;
  }

  uint64_t forgotten_ = 0, anew_ = 0;
};

TEST_P(EngineBudget, AnswersAreTheSameWhateverTheChunksTheMemoryAndTheNeighbours) {
  using Drafts = Setting::Drafts;
  const std::vector<Result> alone = by_themselves();
  EXPECT_GT(forgotten_, requests_.size() * 20);
  EXPECT_GT(anew_, requests_.size() / 10);
  const uint32_t some = uint32_t(requests_.size()) / 3;
  const uint32_t pool = 134;
  EXPECT_EQ(answers({}), alone);
  EXPECT_GT(shared_, some);
  EXPECT_GT(pruned_pages_, some);
  EXPECT_EQ(answers({.sharing = false, .reversed = true}), alone);
  EXPECT_EQ(answers({.chunk = 5, .cancels = true}), alone);
  EXPECT_EQ(answers({.pool_tokens = pool}), alone);
  const bool has_states = make_engine({}).kv().layout().has_states();
  // Of states and windows there may be so few that nobody is let in who would have to give way.
  EXPECT_TRUE(preemptions_ > 0 || has_states || model_.spec.layers[0].window() > 0);
  EXPECT_EQ(answers({.pool_tokens = pool, .drafts = has_states ? Drafts::lookup : Drafts::model}), alone);
  EXPECT_GT(accepted_, 0u);
  EXPECT_EQ(answers({.drafts = Drafts::lookup}), alone);
  EXPECT_EQ(answers({.pool_tokens = pool, .disk_tokens = 4000}), alone);
  EXPECT_EQ(answers({.pool_tokens = pool, .disk_tokens = 4000, .late = true, .pipeline = 2}), alone);
  EXPECT_EQ(answers({.pool_tokens = pool, .host_tokens = 4000, .late = true, .pipeline = 2}), alone);
  EXPECT_EQ(answers({.pipeline = 2, .amends = true}), alone);
}

INSTANTIATE_TEST_SUITE_P(
    Models, EngineBudget,
    testing::Values(SharingCase{"llama3", "llama3"}, SharingCase{"gemma3", "gemma3"},
                    SharingCase{"latent_rows", "glm4_moe_lite"}, SharingCase{"states", "qwen3_5"},
                    SharingCase{"gemma3_q4", "gemma3", exact_kernels, KvFormat::q4},

                    SharingCase{"fast_int8", "synth:q8_0", fastest_kernels, KvFormat::int8},
                    SharingCase{"split_layers", "llama3", exact_kernels, {}, 0, {1, 0}}),
    [](const auto& info) { return info.param.name; });

class Budget : public testing::Test {
 protected:
  Budget() { options_.page_tokens = 4; }
  static Request request(uint32_t prompt, uint32_t answer, uint32_t rows) {
    Request request;
    for (uint32_t i = 0; i < prompt; ++i) request.prompt.push_back(1 + i * 7 % 50);
    request.max_tokens = answer;
    request.ignore_end = true;
    request.budget = BudgetOptions{.rows = rows, .window = 4};
    return request;
  }
  std::string refusal(const Request& request) {
    Engine engine(model_.engine_model(), options_);
    try {
      engine.submit(request);
    } catch (const Error& error) {
      return error.what();
    }
    return "";
  }

  BareModel model_{golden_folder("llama3"), exact_kernels(), 1};
  EngineOptions options_{.context = 96, .max_sequences = 2, .prefill_chunk = 16};
};

TEST_F(Budget, AnAnswerOfTwentyTimesTheBudgetHoldsNoMorePagesThanIt) {
  Engine engine(model_.engine_model(), options_);
  const SequenceId id = engine.submit(request(10, 800, 40));
  uint32_t most = 0;
  while (engine.step()) {
    if (const auto view = engine.sequence(id)) most = std::max(most, view->figures().kv_pages);
  }
  const Answer answer = engine.take_answer(id).value();
  EXPECT_EQ(answer.tokens.size(), 800u);
  EXPECT_EQ(answer.finish_reason, FinishReason::length);
  EXPECT_FALSE(answer.context_full);
  EXPECT_EQ(most, 10u);
  EXPECT_GE(answer.account.forgotten_tokens, 810u - 41u);
  EXPECT_GT(answer.account.counted_anew, 10u);
  EXPECT_LE(engine.kv().stats().peak_held_pages, 11u);  // one more while one that can be found is copied
}

TEST_F(Budget, OneThatIsNeverFullChangesNothing) {
  Request asked = request(20, 19, 40);
  asked.logprobs = true;
  const Answer bounded = Engine(model_.engine_model(), options_).run(asked);
  asked.budget.reset();
  const Answer free = Engine(model_.engine_model(), options_).run(asked);
  EXPECT_EQ(bounded.tokens, free.tokens);
  EXPECT_EQ(bounded.logprobs, free.logprobs);
  EXPECT_EQ(bounded.account.forgotten_tokens, 0u);
}

TEST_F(Budget, RunsInAPoolThatHasRoomForNoMore) {
  const KvLayout layout = make_kv_layout(kv_shapes(model_.spec, KvFormat::f16), 4);
  options_.kv_bytes = kv_bytes(layout, pages_for(layout, 24, 16, 1));
  Engine engine(model_.engine_model(), options_);
  const Answer answer = engine.run(request(90, 200, 24));
  EXPECT_EQ(answer.tokens.size(), 200u);
  EXPECT_EQ(engine.scheduler().preemptions(), 0u);
  EXPECT_NE(refusal(request(90, 200, 40)).find("a budget of 40 rows needs"), std::string::npos);
}

TEST_F(Budget, WithoutANumberOfTokensAnAnswerIsAsLongAsTheContext) {
  const Answer answer = Engine(model_.engine_model(), options_).run(request(200, 0, 32));
  EXPECT_EQ(answer.tokens.size(), 96u);
  EXPECT_EQ(answer.finish_reason, FinishReason::length);
}

TEST_F(Budget, WhatCannotBeIsRefusedInASentence) {
  EXPECT_NE(refusal(request(10, 5, 8)).find("is too small"), std::string::npos);
  EXPECT_NE(refusal(request(10, 5, 100)).find("more than the context"), std::string::npos);
  Request pruned = request(40, 5, 32);
  pruned.pruning = PruningOptions{.share = 0.5, .window = 4};
  EXPECT_NE(refusal(pruned).find("does not go with"), std::string::npos);
  Request judged = request(40, 5, 32);
  judged.budget->policy = PruningPolicy::zip;
  EXPECT_NE(refusal(judged).find("there are snap and streaming"), std::string::npos);
  options_.kv_cache = false;
  EXPECT_NE(refusal(request(40, 5, 32)).find("without a KV cache"), std::string::npos);
}

TEST_F(Budget, AModelWhosePositionsAreATableEndsWithItsContext) {
  BareModel gpt2(golden_folder("gpt2"), exact_kernels(), 1);
  options_.context = 64;
  Engine engine(gpt2.engine_model(), options_);
  EXPECT_THROW(engine.submit(request(40, 30, 24)), Error);
  Request fits = request(40, 24, 24);
  const Answer answer = engine.run(fits);
  EXPECT_EQ(answer.tokens.size(), 24u);
  EXPECT_GT(answer.account.forgotten_tokens, 0u);
  EXPECT_EQ(answer.account.counted_anew, 0u);
}

}  // namespace
}  // namespace quire
