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

TEST(TextMatch, FindsEveryThreeWordsThatStandTogether) {
  EXPECT_EQ(trigrams_of("A KV cache, a KV cache!").size(), 3u);
  EXPECT_TRUE(trigrams_of("two words").empty());
}

}  // namespace
}  // namespace quire
