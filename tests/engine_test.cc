// The engine over a tiny model: limits, stops, cancellation, and what it says about them.
#include <gtest/gtest.h>

#include "base/error.h"
#include "golden_model.h"

namespace quire {
namespace {

class EngineTest : public testing::Test {
 protected:
  Engine engine(uint32_t context, uint32_t sequences = 1) {
    return Engine(model_.engine_model(),
                  {.context = context, .max_sequences = sequences, .prefill_chunk = 8});
  }
  Request request(size_t prompt_tokens, uint32_t max_tokens) {
    Request request;
    for (size_t i = 0; i < prompt_tokens; ++i) request.prompt.push_back(TokenId(i * 7 % model_.spec.vocab));
    request.sampling.temperature = 0;
    request.max_tokens = max_tokens;
    return request;
  }
  static std::string message(const std::function<void()>& action) {
    try {
      action();
    } catch (const Error& error) {
      return error.what();
    }
    return "no error";
  }

  BareModel model_{golden_folder("llama3"), exact_kernels(), 1};
};

TEST_F(EngineTest, StopsWithLengthWhenTheContextIsFullAndSaysSo) {
  Engine e = engine(40);
  const Answer answer = e.run(request(30, 0));
  EXPECT_EQ(answer.tokens.size(), 10u);
  EXPECT_EQ(answer.finish_reason, FinishReason::length);
  EXPECT_TRUE(answer.context_full);
}

TEST_F(EngineTest, StopsWithLengthAtMaxTokens) {
  Engine e = engine(64);
  const Answer answer = e.run(request(10, 3));
  EXPECT_EQ(answer.tokens.size(), 3u);
  EXPECT_EQ(answer.finish_reason, FinishReason::length);
  EXPECT_FALSE(answer.context_full);
}

TEST_F(EngineTest, RefusesAPromptThatDoesNotFitWithBothNumbers) {
  Engine e = engine(40);
  const std::string text = message([&] { e.submit(request(40, 1)); });
  EXPECT_NE(text.find("40 tokens"), std::string::npos) << text;
  EXPECT_NE(text.find("holds 40"), std::string::npos) << text;
  EXPECT_NE(message([&] { e.submit(Request{}); }).find("empty"), std::string::npos);
}

TEST_F(EngineTest, RefusesTokensTheModelDoesNotKnow) {
  Engine e = engine(40);
  Request bad = request(3, 1);
  bad.prompt.push_back(model_.spec.vocab);
  EXPECT_NE(message([&] { e.submit(bad); }).find("the token"), std::string::npos);
}

TEST_F(EngineTest, RefusesSamplingOptionsOutOfRangeNamingThem) {
  Engine e = engine(40);
  Request bad = request(3, 1);
  bad.sampling.top_p = 1.5f;
  EXPECT_NE(message([&] { e.submit(bad); }).find("top-p is 1.5"), std::string::npos);
}

TEST_F(EngineTest, EndsAtAStopTokenAndKeepsItInTheAnswer) {
  Engine e = engine(64);
  const std::vector<TokenId> free = e.run(request(10, 12)).tokens;
  Request stopping = request(10, 12);
  stopping.stop_tokens = {free[5]};
  const Answer answer = e.run(stopping);
  EXPECT_EQ(answer.finish_reason, FinishReason::stop);
  const auto first = size_t(std::find(free.begin(), free.end(), free[5]) - free.begin());
  EXPECT_EQ(answer.tokens, std::vector<TokenId>(free.begin(), free.begin() + ptrdiff_t(first) + 1));
}

TEST_F(EngineTest, ACancelledSequenceFreesAllItHeldAndTheOthersGoOn) {
  Engine e = engine(64, 3);
  const std::vector<TokenId> alone = e.run(request(20, 10)).tokens;
  const SequenceId victim = e.submit(request(30, 20));
  const SequenceId survivor = e.submit(request(20, 10));
  const SequenceId waiting = e.submit(request(5, 1));
  for (int i = 0; i < 4; ++i) e.step();
  e.cancel(victim);
  e.cancel(victim);
  while (e.step()) {
  }
  EXPECT_FALSE(e.take_answer(victim).has_value());
  EXPECT_EQ(e.take_answer(survivor)->tokens, alone);
  EXPECT_TRUE(e.take_answer(waiting).has_value());
  EXPECT_EQ(e.kv().stats().held_pages, 0u);
  e.kv().check_invariants();
}

TEST_F(EngineTest, ServesMoreSequencesThanFitAtOnceInOrderOfArrival) {
  Engine e = engine(64, 2);
  std::vector<SequenceId> ids;
  for (size_t i = 0; i < 6; ++i) ids.push_back(e.submit(request(4 + i, 4)));
  while (e.step()) EXPECT_LE(e.kv().stats().held_pages, 2u * 2);
  for (SequenceId id : ids) EXPECT_EQ(e.take_answer(id)->tokens.size(), 4u);
}

TEST_F(EngineTest, AStreamDoesNotWaitBehindALongPrompt) {
  Engine e = engine(256, 2);
  uint32_t streamed = 0;
  Request stream = request(4, 40);
  stream.on_token = [&](const TokenEvent&) { ++streamed; };
  e.submit(stream);
  e.step();
  e.submit(request(200, 1));  // 25 chunks of 8
  for (int i = 0; i < 10; ++i) e.step();
  EXPECT_EQ(streamed, 11u);
}

TEST_F(EngineTest, LogprobsAreOfTheModelItselfAndTopOnesComeBestFirst) {
  Engine e = engine(64);
  Request asking = request(10, 5);
  asking.logprobs = true;
  asking.top_logprobs = 3;
  std::vector<TokenEvent> events;
  asking.on_token = [&](const TokenEvent& event) { events.push_back(event); };
  e.run(asking);
  ASSERT_EQ(events.size(), 5u);
  for (const TokenEvent& event : events) {
    ASSERT_EQ(event.top_logprobs.size(), 3u);
    EXPECT_EQ(event.top_logprobs[0].token, event.token);  // greedy
    EXPECT_EQ(event.top_logprobs[0].logprob, event.logprob);
    EXPECT_GE(event.top_logprobs[0].logprob, event.top_logprobs[1].logprob);
    EXPECT_LE(event.logprob, 0);
  }
}

}  // namespace
}  // namespace quire
