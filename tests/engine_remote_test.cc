// A store that engines share, as they use it: what one has computed the others need not, whoever waits holds up nobody, and whatever the
// store does the answers are those of an engine without one.
#include <thread>

#include <gtest/gtest.h>

#include "golden_model.h"
#include "kv/tiers/remote_tier_case.h"

namespace quire {
namespace {

using namespace std::chrono_literals;

class EngineRemote : public testing::TestWithParam<const char*> {
 protected:
  EngineRemote() : model_(golden_folder(GetParam()), exact_kernels(), 2) {}
  ~EngineRemote() override { store_->open(); }

  std::unique_ptr<Engine> make(double patience = 1e9, uint32_t pool_tokens = 400) {
    EngineOptions options{.context = 96, .max_sequences = 4, .prefill_chunk = 32};
    options.page_tokens = 4;
    const KvLayout layout = make_kv_layout(kv_shapes(model_.spec, KvFormat::f16), 4);
    options.kv_bytes = kv_bytes(layout, pages_for(layout, pool_tokens, 32, 1));
    options.remote_patience = patience;
    if (with_store_) options.remote = remote_options(store_);
    options.kv_identity = {.model_name = "golden", .model = GetParam(), .positions = "1", .kernels = "exact"};
    return std::make_unique<Engine>(model_.engine_model(), options);
  }
  Request ask(uint32_t which = 0) const {
    Request request;
    for (uint32_t p = 0; p < 60; ++p)
      request.prompt.push_back((which * 31 + p * 7 + p * p) % model_.spec.vocab);
    request.max_tokens = 6;
    request.sampling = {.temperature = 0};
    request.logprobs = true;
    return request;
  }
  // Until all that was published is in the store.
  static void flush(Engine& engine) {
    engine.step();
    while (!engine.remote()->is_done(engine.remote()->last_sent())) engine.remote()->wait(5ms);
  }
  Answer alone(const Request& request) {
    with_store_ = false;
    Answer answer = make()->run(request);
    with_store_ = true;
    return answer;
  }

  BareModel model_;
  std::shared_ptr<MemoryStore> store_ = std::make_shared<MemoryStore>();
  bool with_store_ = true;
};

TEST_P(EngineRemote, WhatOneHasComputedTheOtherTakesAndSaysTheSame) {
  const auto one = make(), other = make();
  const Answer first = one->run(ask());
  EXPECT_EQ(first.account.store, StoreOutcome::nothing);
  flush(*one);
  const Answer second = other->run(ask());
  EXPECT_EQ(second.tokens, first.tokens);
  EXPECT_EQ(second.logprobs, first.logprobs);
  EXPECT_EQ(second.account.cached_tokens, 56u) << "14 pages; what follows is no full page";
  EXPECT_EQ(second.account.remote_tokens, 56u);
  EXPECT_EQ(second.account.store, StoreOutcome::came);
  EXPECT_GT(second.account.remote_ms, 0);
  const Answer third = other->run(ask());
  EXPECT_EQ(third.account.remote_tokens, 0u) << "it is in memory";
  EXPECT_EQ(third.account.store, StoreOutcome::not_asked);
  EXPECT_EQ(third.tokens, first.tokens);
  EXPECT_EQ(alone(ask()).logprobs, first.logprobs);
  EXPECT_EQ(other->kv().stats().held_pages, 0u);
  other->check_invariants();
}

TEST_P(EngineRemote, OthersGoOnWhileOneWaitsForTheStore) {
  const auto one = make(), other = make();
  one->run(ask());
  flush(*one);
  const Answer before = other->run(ask(1));
  flush(*other);
  store_->close();
  const SequenceId id = other->submit(ask());
  other->step();
  ASSERT_TRUE(other->scheduler().find(id)->remote.loading);
  const Answer beside = other->run(ask(1));
  EXPECT_EQ(beside.tokens, before.tokens);
  EXPECT_TRUE(other->scheduler().find(id)->remote.loading);
  store_->open();
  while (!other->idle()) other->step();
  EXPECT_EQ(other->take_answer(id)->account.remote_tokens, 56u);
  other->check_invariants();
}

TEST_P(EngineRemote, OneThatIsCancelledWhileItWaitsLeavesNothingBehind) {
  const auto one = make(), other = make();
  one->run(ask());
  flush(*one);
  store_->close();
  const SequenceId id = other->submit(ask());
  other->step();
  ASSERT_TRUE(other->scheduler().find(id)->remote.loading);
  other->cancel(id);
  EXPECT_TRUE(other->idle());
  store_->open();
  EXPECT_EQ(other->run(ask()).tokens, one->run(ask()).tokens);
  EXPECT_EQ(other->kv().stats().held_pages, 0u);
  other->check_invariants();
}

TEST_P(EngineRemote, WhoHasWaitedAsLongAsComputingTakesComputes) {
  const auto one = make(), other = make(1);
  one->run(ask());
  flush(*one);
  for (uint32_t i = 1; i < 8; ++i) other->run(ask(i));  // what a token takes is known by now
  flush(*other);
  for (int i = 0; i < 200; ++i) other->remote()->doubt_rate();
  store_->close();
  const Answer answer = other->run(ask());
  EXPECT_TRUE(answer.account.store == StoreOutcome::late || answer.account.store == StoreOutcome::slower);
  EXPECT_EQ(answer.tokens, one->run(ask()).tokens);
  EXPECT_LT(answer.account.remote_ms, 5000);
  store_->open();
}

TEST_P(EngineRemote, AStoreThatFailsInEveryWayChangesNoAnswer) {
  const Answer expected = alone(ask());
  const auto one = make();
  one->run(ask());
  flush(*one);
  using Value = MemoryStore::Value;
  const std::function<void(std::string_view, Value&)> lies[] = {
      [](auto, Value& value) { value[value.size() / 2] ^= std::byte(1); },
      [](auto, Value& value) { value.resize(value.size() / 2); },
      [](auto, Value& value) { value.clear(); },
      [](auto, Value& value) { value.resize(value.size() + 100); },
      [this](auto, Value& value) { value = store_->values.begin()->second; },
      [](auto, Value& value) { value.resize(value.size() * 100 + 10000); },
      [](std::string_view name, Value& value) {
        if (name.ends_with("0") && value.size() % 2 == 0 && name[30] < '8') value.back() ^= std::byte(1);
      },
  };
  for (const auto& lie : lies) {
    store_->with([&](MemoryStore& store) { store.lie = lie; });
    const auto other = make();
    const Answer answer = other->run(ask());
    EXPECT_EQ(answer.tokens, expected.tokens);
    EXPECT_EQ(answer.logprobs, expected.logprobs);
    EXPECT_EQ(other->kv().stats().held_pages, 0u);
    other->check_invariants();
  }
  store_->with([](MemoryStore& store) { store.lie = nullptr; });
  store_->set_down(true);
  const auto other = make();
  for (uint32_t i = 0; i < 3; ++i) {
    const Answer answer = other->run(ask());
    EXPECT_EQ(answer.logprobs, expected.logprobs);
    EXPECT_EQ(answer.account.remote_tokens, 0u);
  }
  flush(*other);
  EXPECT_EQ(other->remote()->stats().known_pages, 0u);
}

TEST_P(EngineRemote, PagesOfOneSaltAreNotAnothers) {
  const auto one = make(), other = make();
  Request salted = ask();
  salted.salt = {.key = 5};
  const Answer first = one->run(salted);
  flush(*one);
  EXPECT_EQ(other->run(ask()).account.cached_tokens, 0u);
  const Answer again = other->run(salted);
  EXPECT_EQ(again.tokens, first.tokens);
  EXPECT_EQ(again.account.remote_tokens, 56u);
}

TEST_P(EngineRemote, AnAnswerThatHandsOverIsToldWhenItsPagesAreInTheStore) {
  const auto one = make(), other = make();
  Request prompt = ask();
  prompt.max_tokens = 1;
  prompt.hands_over = true;
  store_->close();
  const SequenceId id = one->submit(prompt);
  const Clock::time_point begin = Clock::now();
  std::thread opener([&] {
    std::this_thread::sleep_for(100ms);
    store_->open();
  });
  std::optional<Answer> answer;
  while (!(answer = one->take_answer(id))) {
    EXPECT_FALSE(one->idle());
    one->step();
  }
  opener.join();
  EXPECT_GT(milliseconds_between(begin, Clock::now()), 90);
  ASSERT_TRUE(answer->hand_over.has_value());
  EXPECT_EQ(answer->hand_over->tokens, 60u);
  EXPECT_TRUE(one->idle());
  Request rest = ask();
  rest.handed_over = answer->hand_over;
  const Answer decoded = other->run(rest);
  EXPECT_EQ(decoded.account.remote_tokens, 56u);
  EXPECT_EQ(decoded.logprobs, alone(ask()).logprobs);
}

TEST_P(EngineRemote, AHandOverThatSaysWhatIsNotSoChangesNoAnswer) {
  const Answer expected = alone(ask());
  HandOver over{.tokens = 56, .prefix = {}};
  for (const uint32_t tokens : {0u, 4u, 56u, 59u, 60u, 4096u, UINT32_MAX}) {
    over.tokens = tokens;
    store_ = std::make_shared<MemoryStore>();  // to which those before have sent nothing
    Request request = ask();
    request.handed_over = over;
    const Answer answer = make()->run(request);
    EXPECT_EQ(answer.logprobs, expected.logprobs);
    EXPECT_EQ(answer.account.remote_tokens, 0u);
  }
}

TEST_P(EngineRemote, AnAnswerIsHandedOverWithoutAWordIfTheStoreIsGone) {
  store_->set_down(true);
  const auto one = make();
  Request prompt = ask();
  prompt.hands_over = true;
  const SequenceId id = one->submit(prompt);
  std::optional<Answer> answer;
  const Clock::time_point begin = Clock::now();
  while (!(answer = one->take_answer(id))) one->step();
  EXPECT_LT(milliseconds_between(begin, Clock::now()), 4000);
  EXPECT_FALSE(answer->hand_over.has_value());
  EXPECT_EQ(answer->tokens, alone(ask()).tokens);
}

TEST_P(EngineRemote, ManyInTinyPoolsOverOneStoreSayWhatTheySayAlone) {
  std::vector<Answer> expected;
  with_store_ = false;
  const auto without = make();
  for (uint32_t i = 0; i < 6; ++i) expected.push_back(without->run(ask(i)));
  with_store_ = true;
  const auto one = make(1e9, 136), other = make(1e9, 136);
  for (uint32_t round = 0; round < 4; ++round) {
    for (Engine* engine : {one.get(), other.get()}) {
      std::vector<SequenceId> ids;
      for (uint32_t i = 0; i < 6; ++i) ids.push_back(engine->submit(ask(i)));
      while (!engine->idle()) engine->step();
      for (uint32_t i = 0; i < 6; ++i) EXPECT_EQ(engine->take_answer(ids[i])->logprobs, expected[i].logprobs);
      engine->check_invariants();
    }
  }
  EXPECT_GT(other->kv().events().count(KvEventKind::received), 20u);
}

INSTANTIATE_TEST_SUITE_P(Goldens, EngineRemote, testing::Values("llama3", "gemma3", "deepseek_v3"),
                         [](const auto& info) { return info.param; });

}  // namespace
}  // namespace quire
