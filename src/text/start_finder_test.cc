#include "text/start_finder.h"

#include <algorithm>
#include <random>

#include <gtest/gtest.h>

namespace quire {
namespace {

using Entries = std::vector<std::pair<std::string_view, uint32_t>>;
struct Seen {
  size_t at, bytes;
  uint32_t id;
  bool operator==(const Seen&) const = default;
};

std::vector<Seen> all(const Entries& entries, std::string_view text) {
  const StartFinder finder(entries);
  std::vector<Seen> seen;
  for (const StartFinder::Start& start : finder.find(text)) {
    finder.each(start, [&](size_t bytes, uint32_t id) {
      seen.push_back({start.at, bytes, id});
      return false;
    });
  }
  return seen;
}

TEST(StartFinder, TellsAllThatBeginAtAPlaceTheLongestFirst) {
  EXPECT_EQ(all({{"ab", 1}, {"abc", 2}, {"b", 3}, {"a", 4}}, "xabcb"),
            (std::vector<Seen>{{1, 3, 2}, {1, 2, 1}, {1, 1, 4}, {2, 1, 3}, {4, 1, 3}}));
  EXPECT_TRUE(all({}, "text").empty());
  EXPECT_TRUE(all({{"", 1}}, "text").empty());
  EXPECT_EQ(all({{"same", 7}, {"same", 8}}, "same"), (std::vector<Seen>{{0, 4, 7}}));
}

TEST(StartFinder, AgreesWithComparingEveryStringAtEveryPlace) {
  std::mt19937 random(1);
  for (int round = 0; round < 300; ++round) {
    std::vector<std::string> strings;
    for (int i = 0; i < 12; ++i) {
      std::string s;
      for (size_t n = 1 + random() % 6; n > 0; --n) s += char('a' + random() % 2);
      if (std::ranges::find(strings, s) == strings.end()) strings.push_back(s);
    }
    std::string text;
    for (int i = 0; i < 60; ++i) text += char('a' + random() % 3);
    Entries entries;
    for (uint32_t i = 0; i < strings.size(); ++i) entries.emplace_back(strings[i], i);
    std::vector<Seen> expected;
    for (size_t at = 0; at < text.size(); ++at) {
      std::vector<Seen> here;
      for (uint32_t i = 0; i < strings.size(); ++i) {
        if (std::string_view(text).substr(at).starts_with(strings[i]))
          here.push_back({at, strings[i].size(), i});
      }
      std::ranges::sort(here, std::greater(), &Seen::bytes);
      expected.insert(expected.end(), here.begin(), here.end());
    }
    ASSERT_EQ(all(entries, text), expected) << text;
  }
}

// At every place a string of 1,024 bytes matches but for its last byte: 16,000 million comparisons if each place were looked
// at for itself.
TEST(StartFinder, NearMatchesCostNoMoreThanNone) {
  std::string near(1023, 'a');
  near.push_back('b');
  EXPECT_TRUE(all({{near, 0}}, std::string(16 << 20, 'a')).empty());
}

}  // namespace
}  // namespace quire
