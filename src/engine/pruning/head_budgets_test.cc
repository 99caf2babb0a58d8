#include "engine/pruning/head_budgets.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <random>

#include <gtest/gtest.h>

namespace quire {
namespace {

using Scores = std::vector<std::vector<float>>;
using Budgets = std::vector<uint32_t>;

Scores random_scores(std::mt19937& random, size_t heads, size_t tokens) {
  Scores scores(heads);
  for (auto& of_head : scores) {
    const float largest = float(1 + random() % 50);
    for (size_t i = 0; i < tokens; ++i) of_head.push_back(largest * float(random() % 1000) / 1000);
  }
  return scores;
}

TEST(HeadBudgets, TheBestAreTheLargestAndOfEqualsTheEarlier) {
  EXPECT_EQ(best_of(std::vector<float>{1, 5, 5, 0, 5}, 2), (std::vector<uint32_t>{1, 2}));
  EXPECT_EQ(best_of(std::vector<float>{1, 5, 5, 0, 5}, 4), (std::vector<uint32_t>{0, 1, 2, 4}));
  EXPECT_EQ(best_of(std::vector<float>{1, 5}, 0), std::vector<uint32_t>());
  EXPECT_EQ(best_of(std::vector<float>{std::nanf(""), 2, std::nanf("")}, 2), (std::vector<uint32_t>{0, 1}));
}

TEST(HeadBudgets, HeadsThatScoreAlikeGetAlike) {
  EXPECT_EQ(split_budget(Scores(5, std::vector<float>(100, 0.5f)), 50, 4), Budgets(5, 50));
}

TEST(HeadBudgets, AHeadThatNeedsMoreTakesWholePagesFromOthers) {
  Scores scores(2, std::vector<float>(100, 0.0f));
  std::fill_n(scores[1].begin() + 10, 80, 1.0f);
  const Budgets budgets = split_budget(scores, 42, 4);
  EXPECT_GT(budgets[1], 70u);
  EXPECT_EQ(budgets[0] + budgets[1], 84u);
  EXPECT_EQ(budgets[0] % 4, 2u);
  EXPECT_EQ(budgets[1] % 4, 2u);
}

TEST(HeadBudgets, BudgetsAddUpAndFitWhateverTheScores) {
  std::mt19937 random(4);
  for (uint32_t round = 0; round < 300; ++round) {
    const uint32_t heads = 1 + random() % 9, tokens = 1 + random() % 120, page = 1u << random() % 6;
    const uint32_t each = random() % (tokens + 1);
    Scores scores = random_scores(random, heads, tokens);
    if (round % 3 == 0) scores[0][random() % tokens] = std::numeric_limits<float>::quiet_NaN();
    if (round % 5 == 0) scores[0][random() % tokens] = std::numeric_limits<float>::infinity();
    const Budgets budgets = split_budget(scores, each, page);
    ASSERT_EQ(budgets.size(), heads);
    EXPECT_EQ(std::accumulate(budgets.begin(), budgets.end(), 0u), each * heads);
    for (const uint32_t budget : budgets) {
      EXPECT_LE(budget, tokens);
      EXPECT_EQ(budget % page, each % page);
    }
  }
}

// What is kept of the scores of all heads.
double worth(const Scores& scores, const Budgets& budgets) {
  double sum = 0;
  for (size_t head = 0; head < scores.size(); ++head) {
    for (const uint32_t place : best_of(scores[head], budgets[head])) sum += double(scores[head][place]);
  }
  return sum;
}

TEST(HeadBudgets, NoPageWouldBeWorthMoreInAnotherHead) {
  std::mt19937 random(6);
  for (uint32_t round = 0; round < 50; ++round) {
    const Scores scores = random_scores(random, 6, 80);
    const Budgets budgets = split_budget(scores, 41, 4);
    const double best = worth(scores, budgets);
    const uint32_t least = *std::ranges::min_element(budgets);
    for (size_t from = 0; from < budgets.size(); ++from) {
      for (size_t to = 0; to < budgets.size(); ++to) {
        Budgets other = budgets;
        if (from == to || other[from] < least + 4 || other[to] + 4 > 80) continue;
        other[from] -= 4;
        other[to] += 4;
        EXPECT_LE(worth(scores, other), best + 1e-3);
      }
    }
  }
}

}  // namespace
}  // namespace quire
