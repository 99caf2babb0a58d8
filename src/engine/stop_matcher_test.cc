#include "engine/stop_matcher.h"

#include <gtest/gtest.h>

namespace quire {
namespace {

std::string shown(StopMatcher& matcher, const std::vector<std::string>& pieces) {
  std::string all;
  for (const std::string& piece : pieces) all += matcher.push(piece);
  return all + matcher.finish();
}

TEST(StopMatcher, CutsAtTheFirstStopStringHoweverItIsDealtOut) {
  const std::string text = "one two\n\nthree";
  for (size_t size = 1; size <= text.size(); ++size) {
    StopMatcher matcher({"three", "\n\n"});
    std::vector<std::string> pieces;
    for (size_t i = 0; i < text.size(); i += size) pieces.push_back(text.substr(i, size));
    EXPECT_EQ(shown(matcher, pieces), "one two") << size;
    EXPECT_TRUE(matcher.matched());
  }
}

TEST(StopMatcher, ShowsWhatItHeldBackWhenNoStopStringFollows) {
  StopMatcher matcher({"</end>"});
  EXPECT_EQ(matcher.push("a </e"), "a ");
  EXPECT_EQ(matcher.push("x"), "</ex");
  EXPECT_EQ(matcher.push("</en"), "");
  EXPECT_EQ(matcher.finish(), "</en");
  EXPECT_FALSE(matcher.matched());
}

TEST(StopMatcher, WithoutStopStringsHoldsNothingBack) {
  StopMatcher matcher({"", std::string()});
  EXPECT_EQ(matcher.push("abc"), "abc");
  EXPECT_EQ(matcher.finish(), "");
}

}  // namespace
}  // namespace quire
