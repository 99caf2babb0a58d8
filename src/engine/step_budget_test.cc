#include "engine/step_budget.h"

#include <gtest/gtest.h>

namespace quire {
namespace {

TEST(StepBudget, IsWholeWithoutATargetOrWithoutStreams) {
  StepBudget none(0, 512);
  none.learn(1000, 1, 0);
  none.learn(2000, 1, 100);
  EXPECT_EQ(none.tokens(true), 512u);
  StepBudget some(50, 512);
  some.learn(2000, 0, 100);
  EXPECT_EQ(some.tokens(false), 512u) << "nobody waits for a token";
}

TEST(StepBudget, BeginsWithAGuessThatIsNotMoreThanTheMost) {
  EXPECT_EQ(StepBudget(50, 512).tokens(true), 64u);
  EXPECT_EQ(StepBudget(50, 40).tokens(true), 40u);
}

TEST(StepBudget, LeavesTheStreamsTheirTimeAndFillsTheRest) {
  StepBudget budget(50, 512);
  budget.learn(20, 4, 0);        // the streams alone
  budget.learn(20 + 64, 4, 64);  // a millisecond for each token of a prompt
  EXPECT_DOUBLE_EQ(budget.per_token_ms(), 1);
  EXPECT_EQ(budget.tokens(true), 30u);
}

TEST(StepBudget, TakesAPromptAloneForWhatItIs) {
  StepBudget budget(100, 512);
  budget.learn(10, 1, 0);
  budget.learn(128, 0, 64);  // no stream was beside it: all of it is the prompt's
  EXPECT_DOUBLE_EQ(budget.per_token_ms(), 2);
  EXPECT_EQ(budget.tokens(true), 45u);
}

TEST(StepBudget, LetsPromptsGoOnWhereTheTargetCannotBeMet) {
  StepBudget budget(5, 512);
  budget.learn(20, 4, 0);
  budget.learn(84, 4, 64);
  EXPECT_EQ(budget.tokens(true), 8u);
  StepBudget small(5, 4);
  small.learn(20, 4, 0);
  small.learn(84, 4, 64);
  EXPECT_EQ(small.tokens(true), 4u) << "never more than the most";
}

TEST(StepBudget, LearnsNothingFromAFewTokensOfAPrompt) {
  StepBudget budget(50, 512);
  budget.learn(20, 4, 0);
  budget.learn(90, 4, 3);
  EXPECT_EQ(budget.per_token_ms(), 0);
}

TEST(StepBudget, FollowsAMachineThatBecomesSlower) {
  StepBudget budget(50, 512);
  budget.learn(20, 4, 0);
  budget.learn(84, 4, 64);
  const uint32_t before = budget.tokens(true);
  for (int i = 0; i < 30; ++i) {
    budget.learn(40, 4, 0);
    budget.learn(40 + 128, 4, 64);
  }
  EXPECT_LT(budget.tokens(true), before);
  EXPECT_NEAR(budget.per_token_ms(), 2, 0.01);
  EXPECT_EQ(budget.tokens(true), 8u) << "10 ms are left for tokens of 2 ms: less than goes on anyway";
}

}  // namespace
}  // namespace quire
