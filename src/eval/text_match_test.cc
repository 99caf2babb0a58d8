#include "eval/text_match.h"

#include <gtest/gtest.h>

namespace quire {
namespace {

TEST(TextMatch, IgnoresCasePunctuationAndALeadingArticle) {
  EXPECT_TRUE(same_answer("The old boot.", "an old boot"));
  EXPECT_TRUE(same_answer("on  Tuesday", "On Tuesday!"));
  EXPECT_TRUE(same_answer("A", "a"));
  EXPECT_FALSE(same_answer("the old boot", "the boot"));
  EXPECT_FALSE(same_answer("12 coins", "2 coins"));
  EXPECT_FALSE(same_answer("", "a boot"));
}

TEST(TextMatch, FindsAnAnswerInASentenceOnlyAsWholeWordsTogether) {
  EXPECT_TRUE(says_answer("a leather jacket", "He threw away the Leather Jacket."));
  EXPECT_TRUE(says_answer("209", "It is \"209\"."));
  EXPECT_FALSE(says_answer("209", "It is 2090."));
  EXPECT_FALSE(says_answer("leather jacket", "A jacket of leather"));
  EXPECT_FALSE(says_answer("?", "anything"));
}

TEST(TextMatch, FindsEveryThreeWordsThatStandTogether) {
  EXPECT_EQ(trigrams_of("A KV cache, a KV cache!").size(), 3u);
  EXPECT_TRUE(trigrams_of("two words").empty());
}

}  // namespace
}  // namespace quire
