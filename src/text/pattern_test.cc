#include "text/pattern.h"

#include <ctime>

#include <gtest/gtest.h>

#include "base/error.h"

namespace quire {
namespace {

using Match = Pattern::Match;

Match match(const Pattern& pattern, const std::string& text, size_t at, bool last) {
  Pattern::Found found;
  return pattern.match_at(text, at, last, found);
}

TEST(Pattern, AsksForMoreWhereWhatFollowsDecides) {
  const Pattern word(R"((?<=a)b|d\b)");
  EXPECT_EQ(match(word, "ab", 1, true), Match::yes);
  EXPECT_EQ(match(word, "d", 0, true), Match::yes);
  EXPECT_EQ(match(word, "d", 0, false), Match::more) << "another letter could follow";
  EXPECT_EQ(match(word, "de", 0, false), Match::no);
  EXPECT_EQ(match(word, "a", 1, false), Match::more) << "nothing is there yet";
  EXPECT_EQ(match(word, "a", 1, true), Match::no);
}

TEST(Pattern, FindsWhatIsLongerThanItsFirstLooks) {
  const Pattern tag(R"(<p=(?<key>[^>]+)>(?<value>.*?)</p>)");
  for (const size_t bytes : {0, 100, 600, 5000, 300'000, 2'000'000}) {
    std::string value;
    while (value.size() < bytes) value += value.size() % 3 == 0 ? "\xC3\xA9" : "<p=";
    const std::string text = "x <p=a>" + value + "</p>" + "<p=b>1</p>";
    Pattern::Patience patience = Pattern::patience_for(text);
    Pattern::Found found;
    ASSERT_TRUE(tag.find(text, 0, found, patience)) << bytes;
    EXPECT_EQ(found.begin, 2u);
    EXPECT_EQ(found.groups, (Pattern::Groups{{"key", "a"}, {"value", value}}));
    ASSERT_TRUE(tag.find(text, found.end, found, patience)) << bytes;
    EXPECT_EQ(found.groups, (Pattern::Groups{{"key", "b"}, {"value", "1"}}));
    EXPECT_FALSE(tag.find(text, found.end, found, patience));
  }
}

// Each of its places may be looked at for as long as one may; all of them together may not.
TEST(Pattern, ASearchEndsHoweverManyPlacesAreHard) {
  const std::string text(50'000, 'a');
  for (const char* source : {"a{0,30}a{0,30}a{0,30}a{0,30}[bc]", "(?:a+a*)b?[cd]", "(?:a|a)*[cd]"}) {
    const Pattern pattern(source);
    Pattern::Patience patience = Pattern::patience_for(text);
    Pattern::Found found;
    const std::clock_t begin = std::clock();
    EXPECT_THROW(pattern.find(text, 0, found, patience), Error) << source;
    EXPECT_LT(double(std::clock() - begin) / CLOCKS_PER_SEC, 10) << source;
  }
}

}  // namespace
}  // namespace quire
