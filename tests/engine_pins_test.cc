// Pruned requests beside pins: what is pinned is never taken, and nobody waits for it without end.
#include <map>

#include <gtest/gtest.h>

#include "golden_model.h"

namespace quire {
namespace {

constexpr uint32_t kPrompt = 40, kRows = 4;

class PinsAndPruning : public testing::TestWithParam<PruningPolicy> {
 protected:
  PinsAndPruning() : model_(golden_folder("llama3"), exact_kernels(), 2) {}

  // Room for `tokens`; 0: for all.
  std::unique_ptr<Engine> make(uint32_t tokens) {
    EngineOptions options{.context = 96, .max_sequences = 2, .prefill_chunk = 16};
    options.page_tokens = kRows;
    const KvLayout layout = make_kv_layout(kv_shapes(model_.spec, options.kv_formats), kRows);
    if (tokens > 0) options.kv_bytes = kv_bytes(layout, pages_for(layout, tokens, 16, 1));
    return std::make_unique<Engine>(model_.engine_model(), options);
  }
  std::vector<TokenId> prompt(uint32_t which) const {
    std::vector<TokenId> tokens;
    for (uint32_t p = 0; p < kPrompt; ++p) tokens.push_back((which * 31 + p * 7 + p * p) % model_.spec.vocab);
    return tokens;
  }
  Request pruned(uint32_t which) const {
    Request request;
    request.prompt = prompt(which);
    request.max_tokens = 6;
    request.sampling = {.temperature = 0};
    request.pruning = PruningOptions{.policy = GetParam(), .share = 0.5, .window = 4};
    request.pruning->evaluator = {.layer = 0, .heads = {0, 2}};
    return request;
  }
  // Each answer is the right one, or there is none for want of room; and there is one of the two.
  void expect_ends(Engine& engine, const std::vector<uint32_t>& which) {
    std::vector<SequenceId> ids;
    for (const uint32_t w : which) ids.push_back(engine.submit(pruned(w)));
    for (int steps = 0; engine.step(); ++steps) ASSERT_LT(steps, 2000) << "it hangs";
    for (size_t i = 0; i < ids.size(); ++i) {
      const Answer answer = engine.take_answer(ids[i]).value();
      if (answer.finish_reason == FinishReason::no_room) {
        ++refused_;
        continue;
      }
      EXPECT_EQ(answer.finish_reason, FinishReason::length);
      EXPECT_EQ(answer.tokens, expected(which[i]));
      EXPECT_EQ(answer.account.pruned_tokens, kPrompt / 2);
      ++answered_;
    }
    engine.check_invariants();
  }
  std::vector<TokenId> expected(uint32_t which) {
    if (!expected_.contains(which)) expected_[which] = make(0)->run(pruned(which)).tokens;
    return expected_[which];
  }

  BareModel model_;
  std::map<uint32_t, std::vector<TokenId>> expected_;
  uint32_t answered_ = 0, refused_ = 0;
};

TEST_P(PinsAndPruning, ARequestIsAnsweredOrToldThatThereIsNoRoomAndNeverHangs) {
  for (uint32_t pinned = 4; pinned <= kPrompt; pinned += 4) {
    const auto engine = make(96);
    Request whole = pruned(0);
    whole.pruning.reset();
    for (const uint32_t which : {0u, 1u}) {
      whole.prompt = prompt(which);
      engine->run(whole);
      ASSERT_GT(engine->pin(std::span(whole.prompt).first(pinned)).tokens, 0u);
    }
    const uint32_t held = engine->kv().stats().held_pages;
    expect_ends(*engine, {0});     // whose prefix is pinned
    expect_ends(*engine, {2});     // which shares nothing
    expect_ends(*engine, {0, 1});  // two beside each other
    expect_ends(*engine, {3, 2});
    EXPECT_EQ(engine->kv().stats().held_pages, held) << "the pins, and nothing else";
    const uint32_t refused = refused_;
    engine->unpin_all();
    expect_ends(*engine, {0, 2});
    EXPECT_EQ(refused_, refused) << "without pins there is room";
  }
  EXPECT_GT(answered_, 0u);
  EXPECT_GT(refused_, 0u);
}

INSTANTIATE_TEST_SUITE_P(Policies, PinsAndPruning, testing::ValuesIn(kPruningPolicies),
                         [](const auto& info) { return parameter_name(name(info.param)); });

}  // namespace
}  // namespace quire
