// Steps as plain data: what a runner makes of moves, draws and failures.
#include "runner/runner.h"

#include <gtest/gtest.h>

#include "base/error.h"
#include "fake_backend.h"
#include "golden_model.h"
#include "late_backend.h"

namespace quire {
namespace {

class FailingBackend : public FakeBackend {
 public:
  void logits(const LogitsParams& params) override {
    if (fails) throw Error("the device is gone");
    FakeBackend::logits(params);
  }
  bool fails = false;
};

class RunnerTest : public testing::Test {
 protected:
  RunnerModel model(Backend& backend) { return {&model_.spec, &model_.weights, &backend}; }

  // A step over one sequence that draws after its last token.
  StepInput input(KvCache& kv, PageTable& table, std::span<const TokenId> tokens, uint32_t position) {
    EXPECT_TRUE(kv.reserve(table, position + uint32_t(tokens.size())));
    kv.begin_run(table, position, uint32_t(tokens.size()));
    StepInput input;
    input.add(tokens, position, StepInput::Logits::last);
    const PageTable* tables[] = {&table};
    input.tables = kv.flatten(tables);
    SampleParams how;
    how.position = position + uint32_t(tokens.size());
    input.add_draw(how);
    input.moves = kv.take_moves();
    return input;
  }
  TokenId next(std::span<const TokenId> tokens) const {
    std::vector<uint32_t> windows(model_.spec.layers.size(), 0);
    return FakeBackend::next(tokens, windows, 0, 0, model_.spec.vocab);
  }

  BareModel model_{golden_folder("llama3"), exact_kernels(), 1};
  const KvLayout layout_ = make_kv_layout(kv_shapes(model_.spec, KvFormat::f16), 4);
  KvCache kv_{layout_, pages_for(layout_, 64, 64, 2)};
};

TEST_F(RunnerTest, AStepTakesTheTokenThatTheOneBeforeItIsStillDrawing) {
  FakeBackend device;
  LateBackend late(device);
  {
    Runner runner(model(late), layout_, kv_.pages_per_group());
    PageTable table = kv_.make_table();
    std::vector<TokenId> tokens = {1, 2, 3, 4, 5};
    const StepHandle first = runner.launch(input(kv_, table, tokens, 0));
    const TokenId unknown[] = {0};
    StepInput second = input(kv_, table, unknown, 5);
    second.drawn = {{.token = 0, .draw = 0}};
    const StepHandle later = runner.launch(std::move(second));
    tokens.push_back(next(tokens));
    EXPECT_EQ(runner.collect(first).draws.at(0).token, tokens.back());
    EXPECT_EQ(runner.collect(later).draws.at(0).token, next(tokens));
    kv_.release(table, {}, 0, KvCache::Reason::forgotten);
  }
}

TEST_F(RunnerTest, MovesOfAStepThatFailedAreMadeAndNobodyIsToldTwice) {
  FailingBackend backend;
  Runner runner(model(backend), layout_, kv_.pages_per_group());
  const std::vector<TokenId> tokens = {1, 2, 3, 4, 5, 6};
  PageTable first = kv_.make_table();
  runner.collect(runner.launch(input(kv_, first, tokens, 0)));
  kv_.moved(runner.take_made());
  kv_.release(first, tokens, 6, KvCache::Reason::finished);

  PageTable second = kv_.make_table();
  ASSERT_EQ(kv_.attach(second, tokens).tokens, 5u) << "the second page in part, as a copy";
  const TokenId last[] = {tokens.back()};
  StepInput again = input(kv_, second, last, 5);
  ASSERT_EQ(again.moves.list.size(), layout_.groups.size());
  backend.fails = true;
  EXPECT_THROW(runner.launch(std::move(again)), Error);
  backend.fails = false;
  EXPECT_EQ(kv_.moves_on_their_way(), layout_.groups.size());
  runner.drain();
  kv_.moved(runner.take_made());
  EXPECT_EQ(kv_.moves_on_their_way(), 0u);
  // The copy is there: the step can be computed after all.
  EXPECT_EQ(runner.collect(runner.launch(input(kv_, second, last, 5))).draws.at(0).token, next(tokens));
  kv_.moved(runner.take_made());
  kv_.release(second, tokens, 6, KvCache::Reason::finished);
}

TEST_F(RunnerTest, OneThatIsAbandonedTellsNobodyOfMovesThatTheCacheHasForgotten) {
  FailingBackend backend;
  Runner runner(model(backend), layout_, kv_.pages_per_group());
  const std::vector<TokenId> tokens = {1, 2, 3, 4, 5, 6};
  PageTable first = kv_.make_table();
  runner.collect(runner.launch(input(kv_, first, tokens, 0)));
  kv_.release(first, tokens, 6, KvCache::Reason::finished);
  PageTable second = kv_.make_table();
  kv_.attach(second, tokens);
  const TokenId last[] = {tokens.back()};
  backend.fails = true;
  EXPECT_THROW(runner.launch(input(kv_, second, last, 5)), Error);
  backend.fails = false;
  second.clear();
  runner.abandon();
  kv_.forget_everything();
  PageTable third = kv_.make_table();
  EXPECT_EQ(runner.collect(runner.launch(input(kv_, third, tokens, 0))).draws.at(0).token, next(tokens));
  const KvMoves made = runner.take_made();
  EXPECT_TRUE(made.empty());
  kv_.moved(made);
  kv_.release(third, {}, 0, KvCache::Reason::forgotten);
}

}  // namespace
}  // namespace quire
