#include "engine/drafts/suffix_text.h"

#include <algorithm>
#include <random>
#include <span>

#include <gtest/gtest.h>

#include "engine/drafts/suffix_drafter.h"

namespace quire {
namespace {

using Tokens = std::vector<TokenId>;

// Where `part` ends in `text`: after how many tokens, each time.
std::vector<size_t> ends_of(const Tokens& text, std::span<const TokenId> part) {
  std::vector<size_t> ends;
  for (size_t end = part.size(); end <= text.size(); ++end) {
    if (std::ranges::equal(std::span(text).subspan(end - part.size(), part.size()), part))
      ends.push_back(end);
  }
  return ends;
}

Tokens random_text(std::mt19937& random, size_t size, uint32_t kinds) {
  Tokens text;
  while (text.size() < size) {
    if (random() % 4 == 0 && text.size() > 4) {
      const size_t from = random() % (text.size() - 3);  // repeats itself
      for (size_t i = 0; i < 4 && text.size() < size; ++i) text.push_back(text[from + i % 3]);
    } else {
      text.push_back(random() % kinds);
    }
  }
  return text;
}

TEST(SuffixText, KnowsTheLongestEndThatStoodBefore) {
  std::mt19937 random(3);
  for (int run = 0; run < 30; ++run) {
    const Tokens all = random_text(random, 90, 2 + run % 5);
    SuffixText text;
    Tokens sofar;
    for (const TokenId token : all) {
      text.append(token);
      sofar.push_back(token);
      uint32_t longest = 0;
      for (uint32_t n = 1; n < sofar.size(); ++n) {
        if (ends_of(sofar, std::span(sofar).last(n)).size() > 1) longest = n;
      }
      ASSERT_EQ(text.repeated().length, longest) << "after " << sofar.size() << " tokens of run " << run;
    }
  }
}

TEST(SuffixText, FollowsAnotherTextAlsoWhileItGrows) {
  std::mt19937 random(4);
  for (int run = 0; run < 30; ++run) {
    const Tokens kept = random_text(random, 80, 3), other = random_text(random, 60, 3);
    SuffixText text;
    Tokens sofar;
    SuffixText::Match match;
    for (size_t i = 0; i < other.size(); ++i) {
      // What has grown since makes a match no shorter, and what is said of it true.
      for (int more = 0; more < 2 && sofar.size() < kept.size() && run % 2 == 1; ++more) {
        text.append(kept[sofar.size()]);
        sofar.push_back(kept[sofar.size()]);
      }
      while (run % 2 == 0 && sofar.size() < kept.size()) {
        text.append(kept[sofar.size()]);
        sofar.push_back(kept[sofar.size()]);
      }
      match = text.follow(match, other[i]);
      const auto read = std::span(other).first(i + 1);
      ASSERT_FALSE(match.length > 0 && ends_of(sofar, read.last(match.length)).empty());
      if (run % 2 == 1) continue;
      const bool is_longest =
          match.length == read.size() || ends_of(sofar, read.last(match.length + 1)).empty();
      ASSERT_TRUE(is_longest) << "after " << i + 1 << " tokens of run " << run;
    }
  }
}

TEST(SuffixText, GuessesWhatFollowedMostOftenAndTheNewestOfEquals) {
  std::mt19937 random(5);
  int guesses = 0;
  for (int run = 0; run < 200; ++run) {
    const Tokens all = random_text(random, 60, 4);
    SuffixText text;
    for (const TokenId token : all) text.append(token);
    const SuffixText::Match match = text.repeated();
    if (match.length == 0) continue;
    std::map<TokenId, std::pair<size_t, size_t>> followers;  // how often, where last
    size_t sum = 0;
    for (const size_t end : ends_of(all, std::span(all).last(match.length))) {
      if (end == all.size()) continue;
      ++followers[all[end]].first;
      followers[all[end]].second = end;
      ++sum;
    }
    const auto best = std::ranges::max_element(followers, {}, [](const auto& f) { return f.second; });
    Tokens guess;
    text.guess(match, 1, guess);
    if (double(best->second.first) / double(sum) < 0.3) {
      EXPECT_TRUE(guess.empty());
    } else {
      ++guesses;
      EXPECT_EQ(guess, Tokens{best->first}) << "run " << run;
    }
  }
  EXPECT_GT(guesses, 100);
}

TEST(SuffixText, KeepsTextsApart) {
  SuffixText text;
  for (const TokenId token : {1, 2, 3}) text.append(TokenId(token));
  text.end_text();
  for (const TokenId token : {4, 5, 1, 2, 9}) text.append(TokenId(token));
  SuffixText::Match match;
  for (const TokenId token : {3, 4}) match = text.follow(match, TokenId(token));
  EXPECT_EQ(match.length, 1u);  // no text has 3, 4
  Tokens guess;
  text.guess(match, 8, guess);
  EXPECT_EQ(guess, (Tokens{5, 1, 2, 9}));
}

TEST(SuffixText, StaysSmallWhateverItHolds) {
  constexpr uint32_t kTokens = 20'000;
  std::mt19937 random(6);
  for (const uint32_t kinds : {1u, 2u, 50u, 100'000u}) {
    SuffixText text;
    for (uint32_t i = 0; i < kTokens; ++i) text.append(random() % kinds);
    EXPECT_LT(text.bytes(), kTokens * 100) << kinds;
    EXPECT_EQ(text.size(), kTokens);
  }
}

class Suffixes : public testing::Test {
 protected:
  // What it guesses for a text, with which it is done then.
  Tokens guess(SequenceId id, const Tokens& prompt, const Tokens& answer, CacheSalt salt = {}) {
    Request request;
    request.prompt = prompt;
    Sequence sequence(id, request, PageTable(1, id, salt), nullptr, {});
    for (const TokenId token : answer) sequence.append(token);
    Sequence* const all[] = {&sequence};
    const uint32_t most = 3;
    drafter_.propose(all, std::span(&most, 1));
    drafter_.forget(id);
    drafter_.catch_up();
    return sequence.drafts;
  }
  SuffixDrafter drafter_;
  const Tokens answer_{10, 11, 12, 13, 14, 15, 16, 17, 18, 19};
};

TEST_F(Suffixes, GuessesFromTheTextItself) {
  EXPECT_EQ(guess(SequenceId{1}, {1, 2, 3, 4, 5, 9, 1, 2}, {}), (Tokens{3, 4, 5}));
  EXPECT_TRUE(guess(SequenceId{2}, {1, 2, 3, 4, 5}, {}).empty());
}

TEST_F(Suffixes, GuessesWhatOthersWereAnsweredButNotWhatTheyAsked) {
  EXPECT_TRUE(guess(SequenceId{1}, {1, 2, 3, 4, 5, 6, 7}, answer_).empty());
  EXPECT_EQ(guess(SequenceId{2}, {30, 31, 12, 13, 14, 15}, {}), (Tokens{16, 17, 18}));
  EXPECT_TRUE(guess(SequenceId{3}, {30, 31, 1, 2, 3, 4, 5}, {}).empty());
}

TEST_F(Suffixes, TellsNobodyWhatAnotherSaltWasAnswered) {
  guess(SequenceId{1}, {1, 2}, answer_, {.key = 7});
  EXPECT_TRUE(guess(SequenceId{2}, {30, 12, 13, 14, 15}, {}).empty());
  EXPECT_TRUE(guess(SequenceId{3}, {30, 12, 13, 14, 15}, {}, {.key = 8}).empty());
  EXPECT_EQ(guess(SequenceId{4}, {30, 12, 13, 14, 15}, {}, {.key = 7}), (Tokens{16, 17, 18}));
}

TEST_F(Suffixes, KeepsTheNewestAnswersAndNoMoreThanItMay) {
  drafter_ = SuffixDrafter(1000);
  std::mt19937 random(8);
  const auto some_answer = [&] {
    Tokens answer;
    for (int i = 0; i < 90; ++i) answer.push_back(random() % 5000);
    return answer;
  };
  Tokens last;
  uint32_t id = 1;
  for (; id < 60; ++id) {
    last = some_answer();
    guess(SequenceId{id}, {1, 2}, last, {.key = id % 4});
    EXPECT_LT(drafter_.kept_bytes(), 2 * 1000 * 100u);
  }
  const CacheSalt salt{.key = (id - 1) % 4};
  EXPECT_EQ(guess(SequenceId{id}, Tokens(last.begin() + 40, last.begin() + 46), {}, salt),
            Tokens(last.begin() + 46, last.begin() + 49));
  drafter_.forget_all();
  EXPECT_EQ(drafter_.kept_bytes(), 0u);
}

}  // namespace
}  // namespace quire
