// A step that cannot go on ends those it served, and nobody else.
#include <atomic>

#include <gtest/gtest.h>

#include "base/error.h"
#include "engine/engine_loop.h"
#include "golden_model.h"

namespace quire {
namespace {

// A backend that fails once, in the middle of a pass, when it is told to.
class BrittleBackend : public CpuBackend {
 public:
  using CpuBackend::CpuBackend;
  void attend(const AttendParams& params) override {
    if (is_dead || (calls_left_ > 0 && --calls_left_ == 0)) throw Error("the device was lost");
    CpuBackend::attend(params);
  }
  void wait(Mark mark) override {
    if (is_dead) throw Error("the device does not answer");
    CpuBackend::wait(mark);
  }
  void fail_after(int calls) { calls_left_ = calls; }

  std::atomic<bool> is_dead = false;

 private:
  std::atomic<int> calls_left_ = 0;
};

class EngineFailure : public testing::Test {
 protected:
  std::unique_ptr<Engine> engine() {
    EngineModel model = model_.engine_model();
    model.backend = &backend_;
    return std::make_unique<Engine>(model,
                                    EngineOptions{.context = 128, .max_sequences = 4, .prefill_chunk = 16});
  }
  Request request(uint32_t first, uint32_t max_tokens = 6) const {
    Request request;
    for (uint32_t i = 0; i < 40; ++i) request.prompt.push_back((first + i * 5) % model_.spec.vocab);
    request.sampling.temperature = 0;
    request.max_tokens = max_tokens;
    return request;
  }

  BareModel model_{golden_folder("llama3"), exact_kernels(), 1};
  BrittleBackend backend_{exact_kernels(), 1};
};

TEST_F(EngineFailure, ThoseThatTheStepServedEndAndWhatIsCachedStays) {
  const auto e = engine();
  const std::vector<TokenId> expected = e->run(request(1)).tokens;
  const uint32_t cached = e->lookup(request(1).prompt).tokens;
  const SequenceId served = e->submit(request(7));
  e->step();
  backend_.fail_after(1);
  const SequenceId waits = e->submit(request(1));
  EXPECT_THROW(e->step(), Error);
  e->check_invariants();
  EXPECT_EQ(e->scheduler().find(served), nullptr);
  EXPECT_EQ(e->lookup(request(1).prompt).tokens, cached);
  while (e->step()) {
  }
  const auto answer = e->take_answer(waits);
  if (answer) {  // it was not in that step too
    EXPECT_EQ(answer->tokens, expected);
  }
  EXPECT_EQ(e->run(request(1)).tokens, expected);
  EXPECT_EQ(e->kv().stats().held_pages, 0u);
}

TEST_F(EngineFailure, AllWhoRunEndWhereTheDeviceDoesNotEvenAnswer) {
  const auto e = engine();
  const std::vector<TokenId> expected = e->run(request(1)).tokens;
  const SequenceId runs = e->submit(request(7)), waits = e->submit(request(1));
  e->step();
  backend_.is_dead = true;
  EXPECT_THROW(e->step(), Error);
  e->check_invariants();
  EXPECT_EQ(e->scheduler().find(runs), nullptr);
  EXPECT_TRUE(e->scheduler().running().empty());
  backend_.is_dead = false;
  while (e->step()) {
  }
  if (const auto answer = e->take_answer(waits)) {  // it had not begun
    EXPECT_EQ(answer->tokens, expected);
  }
  EXPECT_EQ(e->run(request(1)).tokens, expected);
  EXPECT_EQ(e->kv().stats().held_pages, 0u);
}

TEST_F(EngineFailure, TheLoopTellsThemWhyAndServesTheNext) {
  const std::vector<TokenId> expected = engine()->run(request(1)).tokens;
  EngineLoop loop(engine());
  for (int round = 1; round <= 10; ++round) {
    std::promise<std::pair<FinishReason, std::string>> ended;
    backend_.fail_after(round * 3);
    loop.submit(request(7, 60), [&](const Answer* answer, const std::string&) {
      ended.set_value({answer->finish_reason, answer->problem});
    });
    const auto [reason, problem] = ended.get_future().get();
    EXPECT_EQ(reason, FinishReason::failed);
    EXPECT_EQ(problem, "the device was lost");
    std::promise<std::vector<TokenId>> right;
    loop.submit(request(1),
                [&](const Answer* answer, const std::string&) { right.set_value(answer->tokens); });
    EXPECT_EQ(right.get_future().get(), expected);
    EXPECT_EQ(loop.ask([](Engine& e) { return e.kv().stats().held_pages; }).get(), 0u);
  }
}

TEST_F(EngineFailure, AListenerThatThrowsEndsItsOwnRequestAlone) {
  const std::vector<TokenId> expected = engine()->run(request(1)).tokens;
  EngineLoop loop(engine());
  std::promise<FinishReason> ended;
  std::promise<std::vector<TokenId>> right;
  Request deaf = request(7);
  deaf.on_token = [](const TokenEvent&) { throw std::bad_alloc(); };
  loop.submit(deaf,
              [&](const Answer* answer, const std::string&) { ended.set_value(answer->finish_reason); });
  loop.submit(request(1), [&](const Answer* answer, const std::string&) { right.set_value(answer->tokens); });
  EXPECT_EQ(ended.get_future().get(), FinishReason::failed);
  EXPECT_EQ(right.get_future().get(), expected);
}

TEST_F(EngineFailure, AJobThatThrowsHarmsNobody) {
  EngineLoop loop(engine());
  loop.post([](Engine&) { throw Error("a question that nobody could answer"); });
  EXPECT_THROW(loop.ask([](Engine&) -> int { throw Error("nor this one"); }).get(), Error);
  std::promise<size_t> tokens;
  loop.submit(request(1),
              [&](const Answer* answer, const std::string&) { tokens.set_value(answer->tokens.size()); });
  EXPECT_EQ(tokens.get_future().get(), 6u);
}

}  // namespace
}  // namespace quire
