// The engine on its own thread, used by many.
#include "engine/engine_loop.h"

#include <atomic>
#include <thread>

#include <gtest/gtest.h>

#include "engine/verdict.h"
#include "golden_model.h"

namespace quire {
namespace {

class EngineLoopTest : public testing::Test {
 protected:
  std::unique_ptr<Engine> engine(uint32_t sequences = 4) {
    EngineOptions options{.context = 128, .max_sequences = sequences, .prefill_chunk = 16};
    return std::make_unique<Engine>(model_.engine_model(), options);
  }
  Request request(uint32_t prompt_tokens, uint32_t max_tokens) const {
    Request request;
    for (uint32_t i = 0; i < prompt_tokens; ++i) request.prompt.push_back(i * 5 % model_.spec.vocab);
    request.sampling.temperature = 0;
    request.max_tokens = max_tokens;
    return request;
  }

  // How requests ended.
  struct Outcomes {
    std::atomic<int> finished = 0, cancelled = 0, refused = 0;

    EngineLoop::Done count() {
      return [this](const Answer* answer, const std::string&) {
        if (answer == nullptr) {
          ++refused;
        } else {
          ++(answer->finish_reason == FinishReason::cancelled ? cancelled : finished);
        }
      };
    }
  };

  BareModel model_{golden_folder("llama3"), exact_kernels(), 1};
};

TEST_F(EngineLoopTest, ManyThreadsGetTheAnswersThatOneWouldGet) {
  std::vector<std::vector<TokenId>> expected;
  for (uint32_t n = 0; n < 8; ++n) expected.push_back(engine()->run(request(10 + n, 6)).tokens);
  EngineLoop loop(engine());
  std::atomic<int> right = 0, tokens = 0;
  std::vector<std::thread> clients;
  for (int c = 0; c < 4; ++c) {
    clients.emplace_back([&] {
      for (uint32_t n = 0; n < 8; ++n) {
        Request ask = request(10 + n, 6);
        ask.on_token = [&](const TokenEvent&) { ++tokens; };
        std::promise<std::vector<TokenId>> answered;
        loop.submit(ask,
                    [&](const Answer* answer, const std::string&) { answered.set_value(answer->tokens); });
        right += answered.get_future().get() == expected[n] ? 1 : 0;
      }
    });
  }
  for (std::thread& client : clients) client.join();
  EXPECT_EQ(right, 32);
  EXPECT_EQ(tokens, 32 * 6);
  EXPECT_EQ(loop.ask([](Engine& e) { return e.kv().stats().held_pages; }).get(), 0u);
}

TEST_F(EngineLoopTest, ARefusedRequestIsToldWhyAndNothingElseHappens) {
  EngineLoop loop(engine());
  std::promise<std::string> why;
  loop.submit(request(500, 1), [&](const Answer*, const std::string& refused) { why.set_value(refused); });
  EXPECT_NE(why.get_future().get().find("500 tokens"), std::string::npos);
  std::promise<size_t> good;
  loop.submit(request(5, 3),
              [&](const Answer* answer, const std::string&) { good.set_value(answer->tokens.size()); });
  EXPECT_EQ(good.get_future().get(), 3u);
}

TEST_F(EngineLoopTest, ACancelledRequestEndsBeforeTheNextStepAndFreesItsPages) {
  EngineLoop loop(engine());
  std::promise<FinishReason> ended;
  std::promise<void> started, cancelled;
  int tokens = 0;
  Request ask = request(5, 0);
  // The engine waits inside its first step until the request has been cancelled.
  ask.on_token = [&](const TokenEvent&) {
    if (++tokens > 1) return;
    started.set_value();
    cancelled.get_future().wait();
  };
  const auto ticket = loop.submit(
      ask, [&](const Answer* answer, const std::string&) { ended.set_value(answer->finish_reason); });
  started.get_future().wait();
  loop.cancel(ticket);
  cancelled.set_value();
  EXPECT_EQ(ended.get_future().get(), FinishReason::cancelled);
  EXPECT_EQ(loop.ask([](Engine& e) { return e.kv().stats().held_pages; }).get(), 0u);
  EXPECT_EQ(tokens, 1);
}

TEST_F(EngineLoopTest, ShuttingDownFinishesWhatItHasAndRefusesWhatComesLater) {
  EngineLoop loop(engine(1));
  Outcomes outcomes;
  for (int i = 0; i < 5; ++i) loop.submit(request(20, 4), outcomes.count());
  loop.shut_down(Clock::now() + std::chrono::hours(1));
  EXPECT_EQ(outcomes.finished, 5);
  loop.submit(request(20, 4), outcomes.count());
  EXPECT_EQ(outcomes.refused, 1);
  EXPECT_EQ(outcomes.cancelled, 0);
}

TEST_F(EngineLoopTest, AShutdownWhoseTimeIsOverCancelsWhatRunsAndWhatWaits) {
  EngineLoop loop(engine(1));
  Outcomes outcomes;
  // The engine does nothing until the shutdown has begun, which is when it refuses requests.
  int more = 0;
  loop.post([&](Engine&) {
    for (; outcomes.refused == 0; ++more) {
      loop.submit(request(20, 60), outcomes.count());
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
  });
  for (int i = 0; i < 5; ++i) loop.submit(request(20, 60), outcomes.count());
  loop.shut_down(Clock::now());
  EXPECT_EQ(outcomes.refused, 1);
  EXPECT_EQ(outcomes.cancelled, 5 + more - 1);
  EXPECT_EQ(outcomes.finished, 0);
}

TEST_F(EngineLoopTest, AnAnswerTellsWhatWasCachedAndWhyNotMore) {
  const auto e = engine();
  e->run(request(60, 2));
  Request other = request(60, 2);
  other.prompt[40] = 1;
  const Answer answer = e->run(other);
  EXPECT_EQ(answer.account.cached_tokens, 40u);
  EXPECT_EQ(judge(answer).lines.front(), "40 of 60 prompt tokens were cached: differs at token 40");
  EXPECT_EQ(answer.account.prefill.size(), 2u);  // 20 new tokens in chunks of 16
  EXPECT_EQ(e->lookup(other.prompt).tokens, 59u);
}

TEST_F(EngineLoopTest, AConversationPrefillsOnlyWhatIsNew) {
  const auto e = engine();
  Request turn = request(30, 5);
  for (int k = 0; k < 4; ++k) {
    const size_t known =
        k == 0 ? 0 : turn.prompt.size() - 4;  // all but the new words; the last token was not computed
    const Answer answer = e->run(turn);
    EXPECT_EQ(answer.account.cached_tokens, known == 0 ? 0u : uint32_t(known) - 1u);
    turn.prompt.insert(turn.prompt.end(), answer.tokens.begin(), answer.tokens.end());
    turn.prompt.insert(turn.prompt.end(), {1, 2, 3, TokenId(4 + k)});
  }
}

TEST_F(EngineLoopTest, AGapThatAnotherPromptMadeIsSaidToBeSo) {
  const auto e = engine();
  const SequenceId stream = e->submit(request(5, 30));
  for (int i = 0; i < 3; ++i) e->step();
  e->submit(request(100, 1));
  while (e->step()) {
  }
  const Answer answer = e->take_answer(stream).value();
  int prefills = 0;
  for (const RequestAccount::Gap& gap : answer.account.gaps)
    prefills += gap.cause == GapCause::prefill_of_another ? 1 : 0;
  EXPECT_EQ(prefills, 7);  // 100 tokens in chunks of 16
}

TEST_F(EngineLoopTest, ClientsGetEqualSharesHoweverManyRequestsTheySend) {
  const auto e = engine(2);
  std::map<std::string, int> done;
  std::vector<std::pair<SequenceId, std::string>> ids;
  for (int i = 0; i < 12; ++i) {
    Request ask = request(20, 4);
    ask.prompt[0] = TokenId(i);  // nothing to share
    ask.client = "greedy";
    ids.emplace_back(e->submit(ask), "greedy");
  }
  for (int i = 0; i < 3; ++i) {
    Request ask = request(20, 4);
    ask.prompt[0] = TokenId(50 + i);
    ask.client = "modest";
    ids.emplace_back(e->submit(ask), "modest");
  }
  while (done["modest"] < 3) {
    ASSERT_TRUE(e->step());
    for (const auto& [id, client] : ids) done[client] += e->take_answer(id) ? 1 : 0;
  }
  EXPECT_LE(done["greedy"], 6);
}

}  // namespace
}  // namespace quire
