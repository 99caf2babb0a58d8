#include "engine/drafts/drafter.h"

#include <gtest/gtest.h>

namespace quire {
namespace {

constexpr SequenceId kOne{1}, kOther{2};

TEST(DraftPace, TriesAFewBeforeItKnowsWhatTheyCost) {
  EXPECT_EQ(DraftPace(8).length(kOne), 4u);
  EXPECT_EQ(DraftPace(2).length(kOne), 2u);
  EXPECT_EQ(DraftPace(0).length(kOne), 0u);
}

TEST(DraftPace, GuessesAsFarAsItMayWhereGuessesAreFreeAndRight) {
  DraftPace pace(8);
  pace.learn_step(10, 0, 1, 0);
  pace.learn_step(10.1, 0, 1, 4);  // an extra of a hundredth of a step at least
  for (int i = 0; i < 50; ++i) pace.learn_result(kOne, 8, 8);
  EXPECT_EQ(pace.length(kOne), 8u);
}

TEST(DraftPace, StopsWhereGuessesCostAsMuchAsTokens) {
  DraftPace pace(8);
  pace.learn_step(10, 0, 1, 0);
  pace.learn_step(50, 0, 1, 4);  // each guess takes as long as a step
  EXPECT_EQ(pace.length(kOne), 0u);
}

TEST(DraftPace, StopsForOneThatIsAlwaysWrongAndGoesOnForAnother) {
  DraftPace pace(8);
  pace.learn_step(10, 0, 1, 0);
  pace.learn_step(12, 0, 1, 4);
  for (int i = 0; i < 40; ++i) {
    pace.learn_result(kOne, 4, 0);
    pace.learn_result(kOther, 4, 4);
  }
  EXPECT_EQ(pace.length(kOne), 0u);
  EXPECT_GT(pace.length(kOther), 4u);
}

TEST(DraftPace, TriesAgainNowAndThen) {
  DraftPace pace(8);
  pace.learn_step(10, 0, 1, 0);
  pace.learn_step(50, 0, 1, 4);
  uint32_t tries = 0;
  for (int i = 0; i < 48; ++i) tries += pace.length(kOne) > 0 ? 1 : 0;
  EXPECT_EQ(tries, 2u);
}

TEST(DraftPace, CountsTheTimeThatGuessingTakes) {
  DraftPace cheap(8), dear(8);
  for (DraftPace* pace : {&cheap, &dear}) pace->learn_step(10, 0, 1, 0);
  cheap.learn_step(11, 0, 1, 4);
  dear.learn_step(11, 60, 1, 4);
  EXPECT_GT(cheap.length(kOne), 0u);
  EXPECT_EQ(dear.length(kOne), 0u);
}

TEST(DraftPace, BeginsAnewWithASequenceThatItForgot) {
  DraftPace pace(8);
  pace.learn_step(10, 0, 1, 0);
  pace.learn_step(12, 0, 1, 4);
  const uint32_t fresh = pace.length(kOther);
  for (int i = 0; i < 40; ++i) pace.learn_result(kOne, 4, 0);
  ASSERT_NE(pace.length(kOne), fresh);
  pace.forget(kOne);
  EXPECT_EQ(pace.length(kOne), fresh);
}

class Lookup : public testing::Test {
 protected:
  std::vector<TokenId> guess(const std::vector<TokenId>& tokens, uint32_t most) {
    Request request;
    request.prompt = tokens;
    Sequence sequence(kOne, request, PageTable(1, kOne), nullptr, {});
    Sequence* const all[] = {&sequence};
    drafter_.propose(all, std::span(&most, 1));
    return sequence.drafts;
  }
  LookupDrafter drafter_;
};

TEST_F(Lookup, GuessesWhatFollowedTheLastTime) {
  EXPECT_EQ(guess({1, 2, 3, 4, 5, 9, 1, 2, 3}, 2), (std::vector<TokenId>{4, 5}));
}

TEST_F(Lookup, PrefersTheLongerAgreement) {
  EXPECT_EQ(guess({1, 2, 3, 4, 70, 8, 3, 4, 80, 1, 2, 3, 4}, 1), std::vector<TokenId>{70});
}

TEST_F(Lookup, GuessesNothingOfWhatIsNewNorMoreThanItMay) {
  EXPECT_TRUE(guess({1, 2, 3, 4, 5}, 4).empty());
  drafter_.forget_all();
  EXPECT_TRUE(guess({1, 2, 3, 1, 2}, 0).empty());
}

}  // namespace
}  // namespace quire
